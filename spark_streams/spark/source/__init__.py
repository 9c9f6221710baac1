"""Reading with Spark: batch and stream readers, the plans of their ranges on the driver, and reading in the tasks."""
