"""AMQP 1.0, the RabbitMQ stream protocol and feeds as bytes, for both roles; no socket, clock or thread.

``amqp`` has values, messages, many messages as Arrow columns and back, and the security layer; ``rabbitmq`` the frames,
commands and chunks of RabbitMQ Streams; ``feed`` the documents and lines of FeedAPI. ``columnar`` has what all three do
with many values at once, and knows no protocol.
"""
