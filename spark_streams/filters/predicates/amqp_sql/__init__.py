"""Read full SQL filters of AMQP (``amqp:sql-filter``) into conditions on events.

Spec: AMQP Filter Expressions 1.0 §6.
"""

from __future__ import annotations

from spark_streams.filters.predicates.amqp_sql.parser import parse_amqp_sql

__all__ = ["parse_amqp_sql"]
