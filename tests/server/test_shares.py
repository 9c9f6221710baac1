"""What all users share at a door: one of them fills it for nobody else, and neither do strangers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from spark_streams.client.amqp.client import AmqpClient
from spark_streams.client.rabbitmq.client import RabbitClient
from spark_streams.endpoint import Endpoint
from spark_streams.log import LogConfig, ReferenceLog
from spark_streams.secrets import Secret
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread, WebConfig
from spark_streams.server.http.receive_budget import BodyBudget
from spark_streams.server.http.requests import HttpError
from spark_streams.server.users import displaced
from spark_streams.testing import eventually
from tests.real_rabbitmq.by_hand import OPEN, RESPONSE, data, text
from tests.server.hostile.doors import AMQP, AMQP_OPEN, Raw, introduction, rabbit_frame
from tests.server.test_guesses import DOORS, WAIT_S, Serve, http, says, serve, url_of

__all__ = ["serve"]
USERS = {"ann": "secret", "bob": "secret"}
REFUSED = b"4 connections of one user, and has as many"


def comes_in(door: str, user: str) -> tuple[bytes, bytes]:
    """Return what a user says to come in, and what the door then answers."""
    password = b"\0" + user.encode() + b"\0secret"
    if door in ("amqp", "event-hubs"):
        fields = b"\xa3\x05PLAIN" + b"\xa0" + bytes([len(password)]) + password
        init = b"\x00\x53\x41\xc0" + bytes([len(fields) + 1, 2]) + fields
        frame = struct.pack(">IBBH", 8 + len(init), 2, 1, 0) + init
        return b"AMQP\x03\x01\x00\x00" + frame + AMQP + AMQP_OPEN, b"\x00\x53\x10"
    if door == "rabbitmq-stream":
        secret = rabbit_frame(0x13, struct.pack(">I", 3) + text("PLAIN") + data(password))
        tune = rabbit_frame(0x14 | RESPONSE, struct.pack(">II", 1 << 20, 60))
        opened = rabbit_frame(OPEN, struct.pack(">I", 4) + text("/"))
        return introduction() + secret + tune + opened, struct.pack(">HHI", OPEN | RESPONSE, 1, 4)
    return http("/metrics" if door == "web" else "/")("secret", user), b"HTTP/1.1 "


def come(url: str, door: str, user: str) -> Raw:
    raw = Raw(url)
    said, answer = comes_in(door, user)
    raw.send(said)
    says(raw, answer)
    return raw


@pytest.mark.parametrize("door", DOORS)
def test_one_user_leaves_connections_for_others(serve: Serve, door: str) -> None:
    server = serve(max_connections=6, max_user_connections=4, users=USERS)
    url = url_of(server, door)
    there = [come(url, door, "ann") for _ in range(4)]
    refused = come(url, door, "ann")
    says(refused, REFUSED)
    eventually(lambda: refused.look() or refused.ended, "the end of one too many", WAIT_S)
    bobs = [come(url, door, "bob") for _ in range(2)]
    assert not any(REFUSED in each.received or b" 503 " in each.received for each in bobs)
    full = come(url, door, "bob")
    says(full, b"6 connections, and has as many")
    for each in (*there, *bobs):
        each.look()
        assert not each.ended, "those that are there go on"
    there.pop().close()

    def is_let_in() -> bool:
        again = come(url, door, "ann")
        again.look(0.05)
        return not (again.ended or b"and has as many" in again.received)

    eventually(is_let_in, "a place that was left", WAIT_S)


@pytest.mark.parametrize(("most", "of_one"), [(1, 1), (2, 1), (8, 7), (1_024, 896), (5_000, 4_375)])
def test_one_user_has_seven_eighths_unless_the_settings_say_so(most: int, of_one: int) -> None:
    assert AmqpConfig(max_connections=most).user_connections == of_one
    assert AmqpConfig(max_connections=most, max_user_connections=3).user_connections == 3
    with pytest.raises(ValueError, match="max_user_connections is 0, expected at least 1"):
        AmqpConfig(max_connections=most, max_user_connections=0)


def test_a_small_door_keeps_room_without_a_setting_for_it(serve: Serve) -> None:
    server = serve(max_connections=8, users=USERS)
    url = url_of(server, "rabbitmq-stream")
    there = [come(url, "rabbitmq-stream", "ann") for _ in range(7)]
    refused = Raw(url)
    refused.send(comes_in("rabbitmq-stream", "ann")[0])
    says(refused, b"7 connections of one user, and has as many")
    there.append(come(url, "rabbitmq-stream", "bob"))


def test_strangers_fill_no_door(serve: Serve) -> None:
    server = serve(max_connections=4, users=USERS)
    url = url_of(server, "web")
    strangers = [Raw(url) for _ in range(12)]
    for each in strangers:
        each.send(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        says(each, b"ok")
    known = come(url, "web", "ann")
    says(known, b"HTTP/1.1 200")
    eventually(lambda: [each.look() for each in strangers] and strangers[0].ended, "room that a stranger made", WAIT_S)
    for _ in range(8):
        other = Raw(url)
        other.send(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        says(other, b"ok")
    known.look()
    assert not known.ended, "who is known makes room for nobody"


def test_who_gives_up_a_place() -> None:
    assert displaced({1: "a", 2: "b", 3: "b"}, "c") == 2
    assert displaced({1: "a", 2: "b", 3: "b"}, "a") == 1, "of users with as many, who was there first"
    assert displaced({1: "a", 2: "b"}, "b") == 2, "the newcomer's own"


# --- partitions


def test_one_user_leaves_partitions_for_others(tmp_path: Path) -> None:
    full = "user 'ann' has made 7 partitions, %d more are too many: one user may make 7 of the log's 8"
    config = LogConfig(max_partitions=8)
    with ReferenceLog(tmp_path, config) as log:
        log.create_stream("a", 4, maker="ann")
        log.add_partitions("a", 1)
        log.split_partition("a", "0")
        with pytest.raises(ValueError, match=full % 1):
            log.create_stream("more", 1, maker="ann")
        with pytest.raises(ValueError, match=full % 2):
            log.split_partition("a", "1")
        log.create_stream("b", 1, maker="bob")
        log.delete_stream("b")
    with ReferenceLog(tmp_path, config) as log:
        with pytest.raises(ValueError, match=full % 1):
            log.create_stream("more", 1, maker="ann")
        log.create_stream("of nobody", 1)


def test_a_stream_that_a_door_makes_is_its_users(tmp_path: Path) -> None:
    common: dict[str, Any] = {"port": 0, "users": USERS}
    kinds = (AmqpConfig, RabbitConfig, FeedConfig, WebConfig)
    with ReferenceLog(tmp_path) as log, ServerThread(log, *(kind(**common) for kind in kinds)) as server:
        places = {door: int(server.urls[door].rpartition(":")[2]) for door in ("amqp", "rabbitmq-stream")}
        who = ("ann", Secret("secret"))
        with AmqpClient(Endpoint("amqp", "127.0.0.1", places["amqp"], *who)) as over_amqp:
            assert over_amqp.create("by amqp", 2, {})
        for name, is_super in (("by-rabbitmq", False), ("by-super", True)):
            endpoint = Endpoint("rabbitmq-stream", "127.0.0.1", places["rabbitmq-stream"], *who)
            with RabbitClient(endpoint, super_stream=is_super) as over_streams:
                assert over_streams.create(name, 2 if is_super else None, {})
        feed = requests.put(f"{server.urls['feedapi']}/by-feed", auth=("ann", "secret"), timeout=WAIT_S)
        assert feed.status_code == 201
        with requests.Session() as window:
            window.auth = "ann", "secret"
            page = window.get(f"{server.urls['web']}/create", timeout=WAIT_S).text
            token = page.partition('name="csrf_token" value="')[2].partition('"')[0]
            fields = {"name": "by window", "partitions": "1", "csrf_token": token}
            assert window.post(f"{server.urls['web']}/create", fields, timeout=WAIT_S).ok
        assert {stream.name: stream.maker for stream in log.streams()} == dict.fromkeys(
            ("by amqp", "by-rabbitmq", "by-super", "by-feed", "by window"), "ann"
        )


# --- bodies of feeds


class Sending:
    """A body that comes as the test says."""

    def __init__(self, user: str, stored: asyncio.Event | None = None) -> None:
        self.stored = stored
        self.headers: dict[str, str] = {}
        self.scope = {"state": {"connection": SimpleNamespace(user=user)}}
        self.parts: asyncio.Queue[bytes] = asyncio.Queue()
        self.taken = asyncio.Event()
        self.outcome = ""

    async def stream(self) -> AsyncIterator[bytes]:
        while part := await self.parts.get():
            yield part
            self.taken.set()

    async def received(self, budget: BodyBudget) -> None:
        request: Any = self
        try:
            async with budget.received(request) as parts:
                if self.stored is not None:
                    await self.stored.wait()
                self.outcome = f"{sum(map(len, parts))} bytes"
        except HttpError as refusal:
            self.outcome = str(refusal.status_code)
        self.taken.set()

    async def send(self, part: bytes) -> None:
        self.taken.clear()
        self.parts.put_nowait(part)
        await asyncio.wait_for(self.taken.wait(), WAIT_S)


def test_bodies_of_one_user_push_out_no_larger_one_of_another() -> None:
    async def played() -> list[str]:
        budget = BodyBudget(FeedConfig(max_body_bytes=1_000_000, bodies_bytes=1_000_000))
        many, one = [Sending("ann") for _ in range(8)], Sending("bob")
        receiving = [asyncio.ensure_future(each.received(budget)) for each in (*many, one)]
        for each in many[:5]:
            await each.send(b"x" * 100_000)
        await one.send(b"x" * 300_000)
        for each in many[5:]:
            await each.send(b"x" * 100_000)
        assert budget.held.total() <= 1_000_000
        for each in (*many, one):
            each.parts.put_nowait(b"")
        await asyncio.wait(receiving, timeout=WAIT_S)
        return [each.outcome for each in (*many, one)]

    outcomes = asyncio.run(played())
    assert outcomes[-1] == "300000 bytes" and outcomes.count("503") == 1


def test_bodies_of_one_user_that_are_all_there_leave_room_for_others() -> None:
    async def played() -> tuple[list[str], str]:
        budget = BodyBudget(FeedConfig(max_body_bytes=250_000, bodies_bytes=1_000_000))
        stored = asyncio.Event()
        many, one = [Sending("ann", stored) for _ in range(4)], Sending("bob")
        receiving = [asyncio.ensure_future(each.received(budget)) for each in (*many, one)]
        for each in many:
            await each.send(b"x" * 250_000)
            each.parts.put_nowait(b"")
            await asyncio.sleep(0)
        assert budget.held == {"ann": 750_000}
        with pytest.raises(HttpError, match="are under way"):
            budget.sent("ann", b"x" * 200_000)
        await one.send(b"x" * 200_000)
        one.parts.put_nowait(b"")
        await asyncio.wait(receiving[-1:], timeout=WAIT_S)
        with pytest.raises(HttpError, match="are under way"):
            budget.sent("bob", b"x" * 260_000)
        sent = b"".join([part async for part in budget.sent("bob", b"x" * 240_000)])
        assert len(sent) == 240_000
        stored.set()
        await asyncio.wait(receiving, timeout=WAIT_S)
        return [each.outcome for each in many], one.outcome

    outcomes, one = asyncio.run(played())
    assert outcomes == ["250000 bytes"] * 3 + ["503"] and one == "200000 bytes"
