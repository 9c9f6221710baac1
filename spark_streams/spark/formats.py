"""The base of the formats' DataSources: it reads a format's options, and returns its readers and writers.

A format names the module of its options and its columns, and returns the ``Source`` and the ``Sink`` that know its
peer. It imports these where it returns them: Spark loads a ``DataSource`` in several processes, and reads or writes in
few.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import MutableMapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_streams.errors import SparkStreamsError
from spark_streams.options.parser import RedactedOptions, of_a_table
from spark_streams.spark.boundary import CalledBySpark
from spark_streams.spark.schemas import spark_schema

if TYPE_CHECKING:
    from spark_streams.spark.sink.sink import Sink
    from spark_streams.spark.source.reader import Source


class FormatDataSource(CalledBySpark, DataSource):  # type: ignore[misc]
    """One format for ``spark.read``, ``readStream``, ``write`` and ``writeStream``.

    Args:
        options: as Spark hands them over.

    Attributes:
        rows: all columns that the format has.
        default_rows: the columns for a reader whose user gives no schema.
        parsers: the module of its options, with ``FORMAT``, ``validate``, ``parse_source`` and ``parse_sink``.

    Raises:
        OptionError: an option that is unknown, has a bad value, or contradicts another.
    """

    rows: ClassVar[pa.Schema]
    default_rows: ClassVar[pa.Schema]
    parsers: ClassVar[ModuleType]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        of_table = of_a_table(options)
        # CREATE TABLE asks for the columns alone; it needs no options, as Spark never hands them to a reader.
        self._only_columns = of_table is not None and not of_table
        given = options if of_table is None else of_table
        if not self._only_columns:
            self.parsers.validate(given)
        super().__init__(RedactedOptions(given))

    @abstractmethod
    def source(self, options: Any) -> Source:
        """Return the kind of peer that a reader with these options reads."""

    @abstractmethod
    def sink(self) -> Sink:
        """Return the sink with the options of a writer.

        Raises:
            OptionError: an option is for reading only, or contradicts another.
        """

    @classmethod
    def name(cls) -> str:
        """Return the format's name, by which Spark finds it."""
        return str(cls.parsers.FORMAT.name)

    def schema(self) -> StructType:
        """Return the default rows, for a reader whose user gives no schema."""
        if not self._only_columns:
            self.parsers.validate(self.options, reading=True)
        return spark_schema(self.default_rows)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from spark_streams.spark.source.reader import batch_reader

        options = self.parsers.parse_source(self.options, streaming=False)
        return batch_reader(options, schema, self.rows, self.source(options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream; one that was refused says why when Spark first asks it anything.

        When this method raises, Spark's runner of sources still uses the reader, and hides the error behind an
        UnboundLocalError of its own.
        """
        from spark_streams.spark.source.reader import RefusedStreamReader, StreamReader

        try:
            options = self.parsers.parse_source(self.options, streaming=True)
            return StreamReader(options, schema, self.rows, self.source(options))
        except SparkStreamsError as fault:
            return RefusedStreamReader(fault)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a batch query."""
        from spark_streams.spark.sink.writer import batch_writer

        return batch_writer(self.sink(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a stream."""
        from spark_streams.spark.sink.writer import stream_writer

        return stream_writer(self.sink(), schema, overwrite)
