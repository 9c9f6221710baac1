"""AMQP's connections without I/O and without a clock, for both roles: bytes in, what they mean out."""
