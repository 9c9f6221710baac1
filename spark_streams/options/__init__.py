"""Parses the options that Spark passes into frozen dataclasses, with one module for each format.

``names`` has the name of each option, and the ``Format``, which says what options a format has. ``connection``,
``positions`` and ``common`` read the options of all formats. A format has a module of its own, with a ``Format`` that
describes its further options, and with its parsers: ``amqp_events``, ``rabbitmq_stream`` and ``feedapi``. Nothing is
exported here, so that a format's process imports its own module only.
"""
