"""Does with the PyPI package ``zeroeventhub`` what lines of JSON tell it, as ``foreign_programs.py`` says.

``read``        all events of a feed by the package's client: ``url``, ``partitions``, ``page_size``
``headers``     the headers of the events of partition 0: ``url``
``parameters``  what its client asks for: ``partition``, ``cursor``, ``page_size``, ``headers``, of 4 partitions
``lines``       what its server writes for ``records``
``serve``       serves ``events``, a list for each partition, with pages that end anywhere; answers the url
``add``         ``events`` to ``partition`` of what is served
"""

import asyncio
import json
import socket
import sys
import threading

import fastapi
import httpx
import uvicorn
import zeroeventhub

served = []


async def read(url, partitions, page_size=None):
    """Follow all partitions to their ends, as the package's documentation shows."""
    found = []
    async with httpx.AsyncClient(timeout=120) as http:
        client = zeroeventhub.Client(url, partitions, http)
        for partition in range(partitions):
            events, cursor, moved = [], zeroeventhub.FIRST_CURSOR, True
            while moved:
                before, pending = cursor, []
                async for each in client.fetch_events([zeroeventhub.Cursor(partition, cursor)], page_size):
                    assert each.partition_id == partition
                    if isinstance(each, zeroeventhub.Cursor):
                        cursor = each.cursor
                        events += pending
                        pending = []
                    else:
                        pending.append(each.data)
                assert pending == [], "every event is covered by a checkpoint"
                moved = cursor != before
            found.append(events)
    return found


async def headers(url):
    async with httpx.AsyncClient(timeout=120) as http:
        client = zeroeventhub.Client(url, 1, http)
        cursors = [zeroeventhub.Cursor(0, zeroeventhub.FIRST_CURSOR)]
        found = [each async for each in client.fetch_events(cursors, headers=zeroeventhub.ALL_HEADERS)]
    return [each.headers for each in found if isinstance(each, zeroeventhub.Event)]


async def parameters(partition, cursor, page_size, headers):
    client = zeroeventhub.Client("http://x", 4, None)
    sent = client._build_request_params([zeroeventhub.Cursor(partition, cursor)], page_size, headers)
    return [[name, str(value)] for name, value in sent.items()]


async def lines(records):
    handler = zeroeventhub.ZeroEventHubFastApiHandler(None, 2)
    return b"".join([piece async for piece in handler.generate_response_format(iter(records))]).decode()


async def serve(events):
    served[:] = events

    class Reader:
        def get_data(self, cursors, headers, page_size):
            (cursor,) = cursors
            mine = served[cursor.partition_id]
            places = {"_first": 0, "_last": len(mine)}
            at = places[cursor.cursor] if cursor.cursor in places else int(cursor.cursor, 16)
            end = min(len(mine), at + (page_size or 177))
            for n in range(at, end):
                yield {"partition": cursor.partition_id, "headers": {}, "data": mine[n]}
                if n % 100 == 99:
                    yield {"partition": cursor.partition_id, "cursor": f"{n + 1:x}"}
            yield {"partition": cursor.partition_id, "cursor": f"{end:x}"}

    app = fastapi.FastAPI()
    handler = zeroeventhub.ZeroEventHubFastApiHandler(Reader(), len(events))

    @app.get("/feed/v1")
    def feed(request: fastapi.Request):
        return handler.handle(request)

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/feed/v1"


async def add(partition, events):
    served[partition] += events


for line in sys.stdin:
    asked = json.loads(line)
    do = {each.__name__: each for each in (read, headers, parameters, lines, serve, add)}[asked.pop("do")]
    try:
        answer = {"value": asyncio.run(do(**asked))}
    except Exception as fault:
        answer = {"error": f"{type(fault).__name__}: {fault}"}
    print(json.dumps(answer), flush=True)
