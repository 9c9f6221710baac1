"""The RabbitMQ streams door: serves the log over the RabbitMQ streams protocol."""
