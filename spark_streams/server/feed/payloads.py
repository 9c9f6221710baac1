"""What stored messages say, in columns, also where another door let in one that cannot be read."""

from spark_streams.log.message_columns import message_columns_of as columns_of

__all__ = ["columns_of"]
