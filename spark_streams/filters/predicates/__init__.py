"""The conditions that a log node checks: its own tree, and the filters that are read into it."""
