"""The sinks of the formats, one module each: they encode rows and send them over one connection per task."""
