"""Reading feeds with Spark: the driver fetches pages once into a spool, and the tasks of a stream read them there.

Two reads of a feed may differ; docs/adr/0044-feeds-are-spooled.md has the reasons. ``spool`` is the folder,
``page_fetcher`` fetches one partition ahead, ``offset`` is the state in Spark's checkpoint, ``partition_changes``
decides which partitions may start, and ``micro_batch`` plans.
"""
