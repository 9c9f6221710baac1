"""Writes the log's figures in Prometheus' text format or in OpenMetrics, in pieces: a log may have 300,000 samples.

Spec: Prometheus' exposition formats; OpenMetrics 1.0.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import prometheus_client
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from spark_streams.server.turns import Worker
from spark_streams.server.web.figures import FIGURES, Snapshot

_END: Final = b"# EOF\n"
_GZIP_LEVEL: Final = 1


class Exposition:
    """One answer.

    Args:
        snapshot: the state of the log.
        accept: the request's header ``Accept``.
        gzip: whether to compress the answer.

    Attributes:
        headers: the answer's.
    """

    def __init__(self, snapshot: Snapshot, accept: str, *, gzip: bool) -> None:
        self._encode, media_type = choose_encoder(accept)
        self._packer: Any = zlib.compressobj(_GZIP_LEVEL, wbits=31) if gzip else None
        self.headers = {"Content-Type": media_type, **({"Content-Encoding": "gzip"} if gzip else {})}
        self._texts = self._written(snapshot)

    async def pieces(self, worker: Worker) -> AsyncIterator[bytes]:
        """Yield the body; each piece is made in the worker's thread, after the one before is on its way."""
        ended = False
        while not ended:
            piece, ended = await worker.step(self._next)
            if piece:
                yield piece

    def _next(self) -> tuple[bytes, bool]:
        text = next(self._texts, None)
        if self._packer is None:
            return text or b"", text is None
        return (self._packer.flush(), True) if text is None else (self._packer.compress(text), False)

    def _written(self, snapshot: Snapshot) -> Iterator[bytes]:
        for figure in FIGURES:
            for number, metric in enumerate(figure.metrics(snapshot)):
                yield self._text([metric], head=number == 0)
        for collector in (prometheus_client.ProcessCollector, prometheus_client.PlatformCollector):
            yield self._text(collector(registry=None).collect(), head=True)
        # Encoders take a registry, and call only its ``collect``.
        yield self._encode(SimpleNamespace(collect=list))

    def _text(self, metrics: Iterable[Metric], *, head: bool) -> bytes:
        """Return the lines of metrics; without ``head`` those of a further piece, which does not repeat it."""
        text: bytes = self._encode(SimpleNamespace(collect=lambda: metrics)).removesuffix(_END)
        while not head and text.startswith(b"#"):
            text = text.partition(b"\n")[2]
        return text
