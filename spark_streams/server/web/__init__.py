"""The log's window: a page that shows the log to people, and its figures to monitoring."""
