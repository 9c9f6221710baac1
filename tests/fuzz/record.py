"""Writes ``recorded/*.hex``: what real clients send to the doors, one frame or request a line.

    python -m tests.fuzz.record [amqp] [rabbit] [feed] [event-hubs]

AMQP is spoken by qpid-proton, RabbitMQ's stream protocol by rstream, HTTP by requests, Event Hubs by azure-eventhub.
Run it again only when there are more things to say, and name the doors: what a seed's cases are depends on these files.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pyarrow as pa
import requests

from spark_streams.wire.amqp.shared_access import SharedAccessSignature
from tests.door_urls import plain_url

FOLDER = Path(__file__).parent / "recorded"


class Recorder:
    """Forwards connections to a port, and keeps what comes from clients, one connection at a time."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.said: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            said = bytearray()
            self.said.append(said)
            for source, sink, kept in ((client, server, said), (server, client, None)):
                threading.Thread(target=self._pump, args=(source, sink, kept), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):  # a client may be gone before the door is
            while piece := source.recv(1 << 16):
                if kept is not None:
                    kept += piece
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)


def amqp(recorder: Recorder) -> None:
    import proton

    from tests.server.amqp.raw_peer import (
        EARLIEST,
        EPOCH,
        GROUP,
        GROUP_KEY,
        PARTITION,
        Peer,
        annotations_filter,
        sql_filter,
    )

    url = f"amqp://127.0.0.1:{recorder.port}"
    peer = Peer(url, container="writer")
    sender = peer.sender("orders", name="out")
    sender.send_all(["text", b"bytes", {"map": [1, 2.5, None]}], annotations={GROUP_KEY: "k1"})
    peer.sender("many", name="bound", properties={PARTITION: proton.symbol("1")}).send_all(["x" * 300])
    sender.close()
    peer.close()

    peer = Peer(url, container="reader")
    peer.receiver("orders", name="in", filter=EARLIEST).take(5)
    sql = sql_filter("offset > '0' AND application_properties['a'] = 'b' OR NOT (timestamp > 3)")
    peer.attach_receiver("many", name="sql", filter=[EARLIEST, sql], credit=10)
    full = proton.Described(proton.ulong(0x120), "properties.subject LIKE 'a%' AND priority + 1 > 2 OR x IN ('a', 'b')")
    peer.attach_receiver("orders", name="full", filter=full, credit=10, presettled=True)
    peer.attach_receiver("orders", name="time", filter=annotations_filter(timestamp=-1), credit=10)
    peer.pause(0.1)
    peer.close()

    peer = Peer(url, container="member")
    peer.receiver("many", name="grouped", filter=EARLIEST, properties={GROUP: "g", EPOCH: proton.ulong(7)}).take(3)
    durable = peer.receiver("created", name="kept", filter=EARLIEST, durability=2, expiry=proton.Terminus.EXPIRE_NEVER)
    durable.take(4, settle=False)
    peer.receiver("orders/$info", name="info").take(1)
    durable.detach()
    peer.close()


def feed(recorder: Recorder) -> None:
    url = f"http://127.0.0.1:{recorder.port}"
    with requests.Session() as session:
        session.get(f"{url}/orders")
        session.get(f"{url}/orders?partition=0&cursor=_first&pageSizeHint=5")
        session.get(f"{url}/many?partition=1&cursor=_last&stream=20")
        session.get(f"{url}/many?n=3&cursor1=_first&pagesizehint=10&headers=_all")
        session.put(f"{url}/new?partitions=2")
        lines = b'{"event":{"a":[1,{"b":null}]},"key":"k"}\n{"event":"text"}\n'
        named = {"Idempotency-Key": "w", "Idempotency-Sequence": "1", "Idempotency-Digest": "00ff00ff"}
        session.post(f"{url}/orders", data=lines, headers={"Content-Type": "application/x-ndjson", **named})
        packed = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        session.post(f"{url}/many", data=gzip.compress(lines * 50, mtime=0), headers=packed)
        table = pa.table(
            {"value": [b"a", b"b"], "key": ["x", None], "timestamp": pa.array([1, None], pa.timestamp("us"))}
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
        session.post(f"{url}/orders", data=sink.getvalue().to_pybytes(), headers=arrow)
        session.post(
            f"{url}/orders", data=iter([lines[:10], lines[10:]]), headers={"Content-Type": "application/x-ndjson"}
        )
        session.post(f"{url}/many/partitions/0/split?into=2&history=true")
        session.get(
            f"{url}/orders?partition=0&cursor=_first",
            headers={"Authorization": "Bearer x", "Accept-Encoding": "gzip;q=1"},
        )


def event_hubs(recorder: Recorder) -> None:
    from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient

    from tests.fuzz.event_hubs_cases import CENTURY_S

    token = SharedAccessSignature.signed("sb://h/", "guest", "guest", CENTURY_S).text
    where = f"Endpoint=sb://127.0.0.1:{recorder.port}/;SharedAccessSignature={token};UseDevelopmentEmulator=true"
    with EventHubProducerClient.from_connection_string(where, eventhub_name="many") as producer:
        producer.get_eventhub_properties()
        producer.get_partition_properties("1")
        event = EventData(b"\x00\xff")
        event.properties = {"text": "a", "number": 7}
        producer.send_batch([event, EventData("b")], partition_key="customer-7")
        producer.send_batch([EventData(f"event {number}") for number in range(20)])
        producer.send_event(EventData("alone"), partition_id="1")
    for options in ({"owner_level": 3, "track_last_enqueued_event_properties": True}, {}):
        consumer = EventHubConsumerClient.from_connection_string(where, "$Default", eventhub_name="many")
        consumer.receive_batch(
            lambda context, events, client=consumer: client.close() if events else None,
            partition_id="1",
            starting_position="-1",
            prefetch=10,
            **options,
        )


def frames_of_amqp(said: bytes) -> list[bytes]:
    frames = []
    while said:
        size = 8 if said[:4] == b"AMQP" else int.from_bytes(said[:4], "big")
        frames.append(said[:size])
        said = said[size:]
    return frames


def frames_of_rabbit(said: bytes) -> list[bytes]:
    frames = []
    while said:
        size = 4 + int.from_bytes(said[:4], "big")
        frames.append(said[:size])
        said = said[size:]
    return frames


def requests_of(said: bytes) -> list[bytes]:
    """Cut before each request line; bodies here hold none."""
    cuts = [at for at in range(len(said)) if said.startswith((b"GET /", b"PUT /", b"POST /"), at)]
    return [said[a:b] for a, b in zip(cuts, [*cuts[1:], len(said)], strict=True)]


def main() -> None:
    from tests.fuzz.door_process import DoorProcess
    from tests.real_rabbitmq.capture_rstream import with_rstream
    from tests.real_rabbitmq.recording import Capture, Recording

    logging.disable()
    FOLDER.mkdir(exist_ok=True)

    def rabbit(recorder: Recorder) -> None:
        capture = Capture(f"rabbitmq-stream://guest:guest@127.0.0.1:{recorder.port}", Recording(), modern=True)
        asyncio.run(with_rstream(capture))

    with TemporaryDirectory() as folder, DoorProcess(Path(folder)) as doors:
        every: list[tuple[str, str, Callable[[Recorder], None], Callable[[bytes], list[bytes]]]] = [
            ("amqp", "amqp", amqp, frames_of_amqp),
            ("rabbit", "rabbitmq-stream", rabbit, frames_of_rabbit),
            ("feed", "feedapi", feed, requests_of),
            ("event-hubs", "event-hubs", event_hubs, frames_of_amqp),
        ]
        for name, door, speak, cut in every:
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            recorder = Recorder(urlsplit(plain_url(doors.urls[door])).port or 0)
            speak(recorder)
            told = [cut(bytes(said)) for said in recorder.said]
            text = "\n\n".join("\n".join(frame.hex() for frame in frames) for frames in told if frames)
            (FOLDER / f"{name}.hex").write_text(text + "\n")
            print(name, [len(frames) for frames in told])


if __name__ == "__main__":
    main()
