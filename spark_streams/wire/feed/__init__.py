"""FeedAPI and ZeroEventHub, sans-IO: discovery documents, fetch arguments and NDJSON lines, for both roles.

``dialect`` has what the versions call things, ``discovery`` the list of partitions, ``fetch_arguments`` a fetch's
arguments, ``lines`` and ``lines_encode`` lines in columns, ``json_pointer`` JSON pointers into a column of events,
``json_encode`` rows as JSON objects. The rules of a line are in ``line``; ``line_forms``, ``lines_bulk``,
``plain_strings`` and ``json_check`` read many lines at once; ``strict_json`` is JSON as RFC 8259 has it.
"""
