"""FeedAPI and ZeroEventHub, sans-IO: discovery documents, fetch arguments and NDJSON lines, for both roles.

``dialect`` what the versions call things, ``discovery`` the list of partitions, ``fetching`` a fetch's arguments,
``blocks`` a response cut into whole lines, ``lines`` and ``lines_encode`` lines in columns, ``pointer`` JSON pointers
into a column of events, ``json_objects`` rows as JSON objects. The rules of a line are in ``line``; ``alike``,
``templates``, ``checking``, ``shortening``, ``base64_columns`` and ``ranges`` are how many lines are read at once;
``strict`` is JSON as RFC 8259 has it.
"""
