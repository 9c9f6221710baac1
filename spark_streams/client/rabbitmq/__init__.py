"""The RabbitMQ streams client: blocking, one object a task, no Spark."""
