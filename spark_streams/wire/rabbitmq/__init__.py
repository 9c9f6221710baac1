"""Encode and decode the RabbitMQ stream protocol, sans-IO; the client and the door both use this package."""
