"""AMQP 1.0 as bytes, for both roles; no socket, clock or thread.

``types`` one value, ``message`` one message, ``columns`` many messages as Arrow columns and back, ``sasl`` the security
layer. The other modules are parts of these.
"""
