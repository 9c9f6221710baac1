"""Streams of logs that cannot be read twice: pages are fetched once, spooled, and read by the tasks from there.

docs/adr/0016-feeds-are-spooled.md has the reasons. ``spool`` is the folder, ``page_fetcher`` fetches one partition
ahead, ``offset`` is what Spark's checkpoint remembers, ``partition_changes`` says which partitions may start,
``micro_batch`` plans.
"""
