"""The RabbitMQ stream protocol, sans-IO: bytes to values and back, used by the client and the door alike."""
