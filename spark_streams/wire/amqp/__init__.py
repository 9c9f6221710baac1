"""Encode and decode AMQP 1.0: types, messages, sections, SASL, and the names of event streams."""
