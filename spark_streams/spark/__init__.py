"""What Spark runs of a format: readers, writers, filters that it pushes down, and progress that it shows."""
