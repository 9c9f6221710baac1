"""Encode and decode AMQP 1.0, the RabbitMQ stream protocol and feeds, for both roles; no socket, clock or thread.

``amqp`` has values, messages, many messages as Arrow columns and back, and the security layer; ``rabbitmq`` has the
frames, commands and chunks of RabbitMQ Streams; ``feed`` has the documents and lines of FeedAPI. ``columnar`` has the
operations on many values that all three share, and knows no protocol.
"""
