"""Bad clients of the feed door."""
