"""The steps of a capture that rstream takes: its own client class, through the recording proxy."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from rstream import schema
from rstream.client import ClientPool
from rstream.compression import CompressionHelper, CompressionType
from rstream.constants import OffsetType

from tests.real_rabbitmq.recording import SETTLE_S, STREAM, Capture, Proxy


async def with_rstream(capture: Capture) -> None:
    """Drive rstream's own client class through the proxy."""
    parts = urlsplit(capture.url)
    async with Proxy(parts.hostname or "127.0.0.1", parts.port or 5552, capture.recording, "rstream") as proxy:
        pool = ClientPool(
            "127.0.0.1",
            proxy.port,
            vhost="/",
            username="guest",
            password="guest",
            frame_max=1 << 20,
            heartbeat=60,
            load_balancer_mode=False,
            max_retries=1,
        )
        client = await pool.get(connection_name="rstream")
        await client.create_stream(STREAM, {"max-length-bytes": 1000000})
        await client.stream_exists(STREAM)
        await client.declare_publisher(STREAM, "writer", 0)
        await client.query_publisher_sequence(STREAM, "writer")
        confirms: asyncio.Queue[schema.PublishConfirm] = asyncio.Queue()
        client.add_handler(schema.PublishConfirm, confirms.put_nowait)
        deliveries: asyncio.Queue[schema.Deliver] = asyncio.Queue()
        await client.send_publish_frame(schema.Publish(0, [schema.Message(1, None, b"by rstream")]))
        await confirms.get()
        for number, kind in enumerate((CompressionType.No, CompressionType.Gzip)):
            codec = CompressionHelper.compress([b"sub", b"batch"], kind)
            entry = (codec.messages_count(), codec.uncompressed_size(), codec.compressed_size(), codec.data())
            frame = schema.PublishSubBatching(0, 1, 2 + number, 0x80 | codec.compression_type() << 4, *entry)
            await client.send_frame(frame)
            await confirms.get()
        if capture.modern:
            await client.exchange_command_version(schema.FrameHandlerInfo(2, 1, 2))
            await client.send_publish_frame(schema.Publish(0, [schema.Message(4, "pear", b"filtered")]), version=2)
            await confirms.get()
        client.add_handler(schema.Deliver, deliveries.put_nowait, name="3")
        await client.run_queue_listener_task(3, deliveries.put_nowait)
        start = schema.OffsetSpec.from_params(OffsetType.OFFSET, 0)
        await client.subscribe(STREAM, 3, start, 10, {"filter.1": "pear"} if capture.modern else None)
        await asyncio.wait_for(deliveries.get(), 10)
        await client.credit(3, 1)
        await client.store_offset(STREAM, "reader", 1)
        await asyncio.sleep(SETTLE_S)
        await client.query_offset(STREAM, "reader")
        await client.unsubscribe(3)
        await client.delete_publisher(0)
        if capture.modern:
            await client.create_super_stream("golden-super", ["golden-super-0"], ["0"], {})
            await client.partitions("golden-super")
            await client.route("0", "golden-super")
            await client.delete_super_stream("golden-super")
        await client.delete_stream(STREAM)
        await asyncio.sleep(SETTLE_S)
        await pool.close()
