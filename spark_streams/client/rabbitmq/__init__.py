"""Holds the client of RabbitMQ streams: blocking, one object per task, without Spark."""
