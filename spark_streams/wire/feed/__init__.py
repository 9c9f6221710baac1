"""FeedAPI and ZeroEventHub, sans-IO: discovery documents, fetch arguments and NDJSON lines, for both roles.

``dialect`` what the versions call things, ``discovery`` the list of partitions, ``fetching`` a fetch's arguments,
``lines`` the lines of a response in columns, ``pointer`` JSON pointers into a column of events.
"""
