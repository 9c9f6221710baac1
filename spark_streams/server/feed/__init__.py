"""The FeedAPI door of the log: version 2 and version 1 (ZeroEventHub), over HTTP."""
