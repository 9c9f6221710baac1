"""Holds the client of RabbitMQ streams: blocking, one object a task, without Spark."""
