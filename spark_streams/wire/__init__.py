"""AMQP 1.0 and the RabbitMQ stream protocol as bytes, for both roles; no socket, clock or thread.

``types`` one value, ``message`` one message, ``columns`` many messages as Arrow columns and back, ``sasl`` the security
layer. ``rabbit`` has the frames, commands and chunks of RabbitMQ streams. The other modules are parts of these.
"""
