"""Writing with Spark: the writers of all sinks, their interface to a format's sink, and the checks of a schema."""
