"""The code that Spark runs for all formats: readers, writers, pushed filters, and the progress of queries."""
