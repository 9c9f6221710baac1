"""AMQP 1.0, the RabbitMQ stream protocol and feeds as bytes, for both roles; no socket, clock or thread.

``types`` one value, ``message`` one message, ``columns`` many messages as Arrow columns and back, ``sasl`` the security
layer. ``rabbit`` has the frames, commands and chunks of RabbitMQ streams, ``feed`` the documents and lines of FeedAPI.
The other modules are parts of these.
"""
