"""The FeedAPI door: serves the log over HTTP, as FeedAPI version 2 and version 1 (ZeroEventHub)."""
