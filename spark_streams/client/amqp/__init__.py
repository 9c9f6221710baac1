"""Holds the client of AMQP 1.0 event streams."""
