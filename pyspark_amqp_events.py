"""Found by Spark."""
