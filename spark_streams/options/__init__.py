"""Parses the options that Spark passes into frozen dataclasses, with one module for each format.

``names`` has the name of each option, and the ``Format``, which says what options a format has. ``connection``,
``positions`` and ``common`` read the options of all formats. Each format has a module of its own (``amqp_events``,
``rabbitmq_stream``, ``feedapi``), with its parsers and a ``Format`` that describes its further options. This package
exports nothing, so that a process that uses one format imports only that format's module.
"""
