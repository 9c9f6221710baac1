"""Filter pushdown: the translation of Spark's filters, the pruning of ranges, and the report of what is pushed."""
