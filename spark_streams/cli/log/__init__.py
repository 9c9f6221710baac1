"""`spark-streams log …`: the embedded log on the command line."""
