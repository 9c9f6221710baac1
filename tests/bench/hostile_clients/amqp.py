"""Bad clients of the AMQP door."""
