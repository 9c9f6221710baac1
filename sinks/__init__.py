"""The sinks, one module a format: what rows become, and the connection that a task sends them over."""
