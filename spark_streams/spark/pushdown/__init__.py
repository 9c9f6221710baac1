"""Spark's filters, pruned partitions, and what was pushed down."""
