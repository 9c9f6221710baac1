"""Writing: the writers of all sinks, and what they ask of a schema."""
