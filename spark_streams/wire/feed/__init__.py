"""Encode and decode FeedAPI and ZeroEventHub, sans-IO: discovery documents, fetch arguments and NDJSON lines.

All of it is for both roles. ``dialect`` has the names of each version, ``discovery`` the list of partitions,
``fetch_arguments`` a fetch's arguments, ``lines`` and ``lines_encode`` lines in columns, ``json_pointer`` JSON pointers
into a column of events, ``json_encode`` rows as JSON objects. ``line`` has the rules of a line; ``json_texts`` has
columns of JSON that msgspec has cut out of many texts; ``strict_json`` reads JSON as RFC 8259 defines it.
"""
