"""The conditions that a log node checks: their tree, and the parsers that read filters into it."""
