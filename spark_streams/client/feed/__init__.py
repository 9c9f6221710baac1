"""The client of feeds over HTTP: FeedAPI version 2 and ZeroEventHub, blocking, without Spark."""
