"""The RabbitMQ streams door of the log."""
