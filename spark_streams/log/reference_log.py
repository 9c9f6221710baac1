"""The reference log: all streams of a data directory, which one process has open.

::

    DIR/lock                                 held while the log is open
    DIR/state.sqlite                         the state store: durable links, epochs
    DIR/streams/NAME/stream.json             name, incarnation, settings, partitions
    DIR/streams/NAME/splits/PARTITION        where the records of a redistributed partition went
    DIR/streams/NAME/PARTITION/OFFSET.log    a segment, named by its first offset
    DIR/streams/NAME/PARTITION/OFFSET.index  its sparse index
    DIR/streams/NAME/PARTITION/recovery-point
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from spark_streams.errors import LogError, LogLocked, NameTaken, StreamExists, UnknownStream
from spark_streams.filters.tree import Expression
from spark_streams.log.config import LogConfig, StreamConfig
from spark_streams.log.names import Names
from spark_streams.log.names import partition_names as names_of_partitions
from spark_streams.log.search import first_matching
from spark_streams.log.state_store import StateStore
from spark_streams.log.storage.files import logger, make_directory, sync_directory
from spark_streams.log.storage.partition import Partition
from spark_streams.log.stream import Stream, call_all, load_stream, new_stream
from spark_streams.log.stream_metadata import MAX_PARTITION_NAME_BYTES, folder_name

_DELETED = ".deleted-"


def wall_clock_ms() -> int:
    """Return the time now, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class ReferenceLog(AbstractContextManager["ReferenceLog"]):
    """A durable, partitioned log, which the server's doors serve.

    Args:
        data_dir: its folder. A missing one is created for this user alone; an existing one keeps its mode, which new
            files and folders in it follow. None: a temporary folder that ``close`` removes.
        config: its settings; None: the defaults.
        clock: returns the time now, in ms since the epoch; for tests.

    Raises:
        LogLocked: another process, or another object of this one, has the folder open.
        CorruptLog: an acknowledged batch fails its check.
        NameTaken: two streams, whose folders were put together by hand, have one name at the doors.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        config: LogConfig | None = None,
        *,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.config = config or LogConfig()
        self._open_partition = partial(Partition, sync_each_append=self.config.fsync == "always", clock=clock)
        self.data_dir = Path(tempfile.mkdtemp(prefix="spark-streams-log-")) if data_dir is None else Path(data_dir)
        if not self.data_dir.is_dir():
            self.data_dir.mkdir(0o700, parents=True, exist_ok=True)
            sync_directory(self.data_dir.absolute().parent)
        self._changes = threading.Lock()
        self._streams: dict[str, Stream] = {}
        self.changes = 0
        """The number of changes of streams or partitions, some perhaps without effect; it rises once a change can be
        seen."""
        self._names = Names()
        self._closed = threading.Event()
        self._root = self.data_dir / "streams"
        with ExitStack() as resources:  # closed in the opposite order, the lock last, also when one of them fails
            if data_dir is None:
                resources.callback(shutil.rmtree, self.data_dir)
            self._take_lock(resources)
            make_directory(self._root)
            sync_directory(self.data_dir)  # streams sync their own folders; this entry leads to them
            self.state = StateStore(self.data_dir / "state.sqlite", power_safe=self.config.fsync == "always")
            resources.callback(self.state.close)
            resources.callback(lambda: call_all(stream.close for stream in self._streams.values()))
            self._load()
            self._resources = resources.pop_all()
        self._upkeep = threading.Thread(target=self._keep_up, name="spark-streams-log-upkeep", daemon=True)
        self._upkeep.start()

    def _take_lock(self, resources: ExitStack) -> None:
        fd = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT, self.data_dir.stat().st_mode & 0o666)
        resources.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LogLocked(
                f"the data directory {self.data_dir} is open in another process: stop the server that uses it, or "
                "give this one a directory of its own"
            ) from None

    def _load(self) -> None:
        for folder in sorted(self._root.iterdir()):
            stream = None if folder.name.startswith(_DELETED) else load_stream(folder, self._open_partition)
            if stream is None:
                logger.info("%s: removed, its creation or deletion had not ended", folder)
                shutil.rmtree(folder)
            else:
                self._streams[stream.name] = stream
        for stream in self._streams.values():
            try:
                self._take_names(stream)
            except NameTaken as fault:
                (other, _), here = self._names.find(fault.other_name) or ("", None), stream.folder.name
                raise NameTaken(
                    fault.name,
                    fault.what,
                    fault.other_name,
                    fault.other,
                    f"the log {self.data_dir} cannot be opened with both. Move one of the folders '{here}' and "
                    f"'{folder_name(other)}' from {self._root} into the folder 'streams' of another data directory: it "
                    "is whole there, and can be served and copied from",
                ) from None

    def _take_names(self, stream: Stream, more: int = 0) -> None:
        """Keep a stream's names, and those of ``more`` further partitions.

        Raises:
            NameTaken: another stream has one of them.
        """
        count = stream.partitions_ever + max(more, 0)
        names = names_of_partitions(stream.name, count, stream.partition_names)
        self._names.check(stream.name, names)
        self._names.keep(stream.name, names)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let one thread at a time change which streams and partitions exist; count it, even if it failed half-way."""
        with self._changes:
            self._check_open()
            try:
                yield
            finally:
                self.changes += 1

    @contextmanager
    def _growing(self, name: str, more: int) -> Iterator[Stream]:
        """Return a stream that gets ``more`` partitions; their names are taken first, for readers that look for them.

        Calls that create, delete or change a stream wait until the context ends.

        Raises:
            UnknownStream: there is no such stream.
            ValueError: the log would have too many partitions.
            NameTaken: another stream has the name of one of them.
        """
        with self._changing():
            stream = self.stream(name)
            self._check_room(more, stream.maker)
            self._take_names(stream, more)
            try:
                yield stream
            finally:
                self._take_names(stream)  # of its partitions now: the change may have failed before or after its effect

    def _keep_up(self) -> None:
        """Sync and enforce retention, each at its own interval, until the log is closed."""
        fsync_s = self.config.fsync_interval_ms / 1000
        check_s = self.config.retention_check_ms / 1000
        pause = min(fsync_s, check_s) if self.config.fsync == "interval" else check_s
        next_check = time.monotonic() + check_s
        while not self._closed.wait(pause):
            if self.config.fsync == "interval":
                self._try(self.sync)
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + check_s
                self._try(self.enforce_retention)

    def _try(self, upkeep: Callable[[], object]) -> None:
        try:
            upkeep()
        except Exception:
            # A disk that refuses now may recover, and appends report their own failures; but without this thread the
            # log would never sync again, and nothing would report it.
            logger.exception("%s: upkeep failed, it will be tried again", self.data_dir)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise LogError(f"the log {self.data_dir} is closed: open it again")

    def _check_room(self, more: int, maker: str | None) -> None:
        there, most = len(self._partitions()), self.config.max_partitions
        if maker is not None:
            theirs, share = sum(len(s.partitions) for s in self.streams() if s.maker == maker), max(1, most * 7 // 8)
            if theirs + more > share:
                raise ValueError(
                    f"user '{maker}' has made {theirs} partitions, {more} more are too many: one user may make {share} "
                    f"of the log's {most}, see its max_partitions"
                )
        if there + more > most:
            raise ValueError(
                f"the log has {there} partitions, {more} more are too many: it may have {most}, see its max_partitions"
            )

    def create_stream(
        self,
        name: str,
        partitions: int = 1,
        config: StreamConfig | None = None,
        *,
        exist_ok: bool = False,
        partition_names: Sequence[str] | None = None,
        maker: str | None = None,
    ) -> Stream:
        """Create a stream, durably.

        Args:
            name: its name.
            partitions: how many partitions it starts with.
            config: its settings; None: the log's.
            exist_ok: return an existing stream of that name, whatever its settings.
            partition_names: the names of its partitions for RabbitMQ's clients, one for each; None: ``orders-0`` and so
                on, or the stream's own name as long as there is one partition.
            maker: the user for whose share of ``max_partitions``, 7/8, it counts; None: for nobody's.

        Raises:
            StreamExists: there is a stream of that name, and ``exist_ok`` is False.
            NameTaken: another stream, or a partition of one, has this name or the name of a partition.
            ValueError: a name or number cannot be used.
        """
        folder = self._root / folder_name(name)
        with self._changing():
            if name in self._streams:
                if exist_ok:
                    return self._streams[name]
                raise StreamExists(f"there is a stream '{name}' already: choose another name, or delete it first")
            self._check_room(partitions, maker)
            given = None if partition_names is None else tuple(partition_names)
            if (longest := max((len(each.encode()) for each in given or ()), default=0)) > MAX_PARTITION_NAME_BYTES:
                raise ValueError(f"a partition's name has {longest} bytes: expected at most {MAX_PARTITION_NAME_BYTES}")
            names = names_of_partitions(name, partitions, given)
            self._names.check(name, names)
            stream = new_stream(
                folder, name, partitions, config or self.config.stream, self._open_partition, given, maker
            )
            self._streams = {**self._streams, name: stream}
            self._names.keep(name, names)
            return stream

    def delete_stream(self, name: str) -> None:
        """Delete a stream with all its records, durably.

        Raises:
            UnknownStream: there is no such stream.
        """
        with self._changing():
            stream = self.stream(name)
            self._streams = {other: s for other, s in self._streams.items() if other != name}
            doomed = self._root / f"{_DELETED}{uuid.uuid4().hex}"
            stream.discard()
            os.rename(stream.folder, doomed)
            self._names.drop(name)
            sync_directory(self._root)
            shutil.rmtree(doomed)

    def add_partitions(self, name: str, count: int) -> Stream:
        """Add empty partitions to a stream, durably, and return it.

        Raises:
            UnknownStream: there is no such stream.
            ValueError: ``count`` is not positive, or there would be too many partitions.
            NameTaken: another stream has the name of one of the new partitions.
        """
        with self._growing(name, count) as stream:
            stream.add_partitions(count)
            return stream

    def split_partition(self, name: str, partition: str, into: int = 2, *, history: bool = False) -> Stream:
        """Split an open partition into several, durably, and return its stream.

        Without ``history`` it is closed: it keeps its records, refuses appends from now on (``PartitionEnded``), and
        the new partitions, empty, start after it. With ``history`` all its records are redistributed onto the new
        partitions, by their keys, and it leaves: ``Stream.translate`` returns the offset at which one of its readers
        continues. In both cases a key that belonged to it belongs to one of the new partitions.

        Whatever ends the process, the next start finds the partition as it was, or split. Appends to the partition
        wait while the change takes effect; with ``history`` most records are copied before that. Other partitions do
        not wait. Calls that create, delete or change a stream wait. A failed call may be repeated.

        Raises:
            UnknownStream: there is no such stream.
            ValueError: the partition is not there or closed, or cannot be split into so many.
            NameTaken: another stream has the name of one of the new partitions.
            LogError: with ``history``, records with headers of their own, which no append stores.
            OSError: the system refused; the partition is as it was.
        """
        with self._growing(name, into) as stream:
            stream.split(partition, into, history=history)
            return stream

    def find(self, name: str) -> Stream | None:
        """Return the stream of that name, or None."""
        return self._streams.get(name)

    def stream(self, name: str) -> Stream:
        """Return the stream of that name.

        Raises:
            UnknownStream: there is no such stream.
        """
        try:
            return self._streams[name]
        except KeyError:
            known = ", ".join(f"'{n}'" for n in sorted(self._streams)) or "none"
            raise UnknownStream(f"there is no stream '{name}'; there are: {known}") from None

    def shown(self, name: str) -> tuple[Stream, str | None] | None:
        """Return the stream that RabbitMQ's clients know by a name, and the partition's number; None without one.

        The number is None for the whole stream. The number of a redistributed partition is no key of ``partitions``.
        """
        found = self._names.find(name)
        stream = None if found is None else self._streams.get(found[0])
        return None if found is None or stream is None else (stream, found[1])

    def first_matching(self, name: str, partition: str, expression: Expression, start: int = 0) -> int | None:
        """Return the offset of the first record of a partition that a filter is true of; None when there is none.

        See ``search.first_matching``, which says how.

        Args:
            name: the stream's name.
            partition: the partition's identifier.
            expression: the filter; ``spark_streams.filters.parse`` makes one of text.
            start: where to begin, inclusive.

        Raises:
            UnknownStream: there is no such stream.
            ValueError: the stream has no such partition.
            FilterError: the filter looks at what messages cannot have.
            CorruptLog: a check failed.
        """
        partitions = self.stream(name).partitions
        if partition not in partitions:
            known = ", ".join(partitions)
            raise ValueError(f"stream '{name}' has no partition '{partition}'; there are: {known}")
        return first_matching(partitions[partition], expression, start)

    def streams(self) -> list[Stream]:
        """Return all streams, by name."""
        there = self._streams  # another thread may replace it by a changed one meanwhile
        return [there[name] for name in sorted(there)]

    def sync(self) -> None:
        """Force everything that has been appended to the disk."""
        call_all(partition.sync for partition in self._partitions())

    def _partitions(self) -> list[Partition]:
        return [partition for stream in self.streams() for partition in stream.partitions.values()]

    def enforce_retention(self) -> int:
        """Remove the segments that retention no longer keeps; return how many."""
        removed: list[int] = []
        call_all(partial(lambda each: removed.append(each.enforce_retention()), each) for each in self._partitions())
        return sum(removed)

    def close(self) -> None:
        """Force everything to the disk and close; a temporary log is removed. Closing twice is harmless."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._upkeep.join()
        with self._changes:
            self._resources.close()

    def __exit__(self, *fault: object) -> None:
        self.close()
