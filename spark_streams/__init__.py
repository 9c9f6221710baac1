"""Spark Structured Streaming connectors for event logs."""
