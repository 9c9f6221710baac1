"""The log's third door: FeedAPI version 2 and, beside it, version 1 (ZeroEventHub), over HTTP."""
