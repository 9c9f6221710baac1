"""log create and delete at each door of a running log, and what they say when they cannot."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from spark_streams.client import AmqpClient
from spark_streams.errors import DeadlineExceeded, NotFound, RemoteProtocolError, SparkStreamsError
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread
from spark_streams.server.users import Permissions
from tests.cli.conftest import Ran, ServedHere
from tests.cli.peers.opened import PEERS
from tests.faults.proxy import Break, TcpProxy

Run = Callable[..., Ran]
USERS = {"guest": "guest", "reader": "hidden-word"}
PERMISSIONS = {"reader": Permissions(configure="mine-.*", read="mine-.*")}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHere]:
    """A log with a user who may configure some streams only."""
    with ReferenceLog(tmp_path_factory.mktemp("log")) as log:
        kinds = (AmqpConfig, RabbitConfig, FeedConfig)
        doors = [kind(port=0, users=USERS, permissions=PERMISSIONS) for kind in kinds]
        with ServerThread(log, *doors, EventHubsConfig(port=0)) as server:
            yield ServedHere(server.urls, log)


@pytest.fixture
def url(served: ServedHere, request: pytest.FixtureRequest) -> str:
    """The url of a door, for user guest."""
    return served.doors[request.param].replace("//", "//guest:guest@")


def line_of(done: Ran, code: int) -> str:
    """Return the one line that a command says as it fails."""
    assert done.code == code, done
    (line,) = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert "hidden-word" not in done.err and "Traceback" not in done.err
    return line


@pytest.mark.parametrize(("url", "door"), [(door, door) for door in PEERS], indirect=["url"])
def test_streams_come_and_go_at_every_door(run: Run, served: ServedHere, url: str, door: str) -> None:
    plain, parts = f"{door}-plain", f"{door}-parts"
    made = run("log", "create", url, plain, f"{parts}:3", "--retention-ms", "60000")
    assert (made.code, made.out) == (0, f"{plain}: created\n{parts}: created\n"), made
    held = served.log.stream(parts)
    assert list(held.partitions) == ["0", "1", "2"]
    assert held.config.retention_max_age_ms == 60_000
    assert served.log.stream(plain).config.segment_max_bytes == served.log.config.stream.segment_max_bytes

    told = json.loads(run("inspect", url, parts, "--json").out)
    assert (told["stream"], len(told["partitions"])) == (parts, 3)
    table = run("inspect", url, parts).out
    assert parts in table and ("closed" in table) == (door == "feedapi")
    if door in ("amqp", "feedapi"):
        assert told["config"] == dataclasses.asdict(held.config) and "why" not in told
        assert re.search(r"partitions +│ 3 ", table) and re.search(r"retention_max_age_ms +│ 60000 ", table)
        assert re.search(r"retention_max_bytes +│ no limit ", table)
    else:
        assert told["config"] is None and "over AMQP, with a url amqp://host:port" in told["why"]
        assert f"Its settings are not known: {told['why']}\n" in table

    again = ("log", "create", url, plain, f"{parts}:3", "--retention-ms", "60000")
    assert f"there is a stream '{plain}' already" in line_of(run(*again), 1)
    differs = run("log", "create", url, plain, "--retention-ms", "70000", "--if-not-exists")
    assert "already" in line_of(differs, 1)
    again = run(*again, "--if-not-exists")
    assert (again.code, again.out) == (0, f"{plain}: was there\n{parts}: was there\n"), again
    other = run("log", "create", url, f"{parts}:2", "--if-not-exists")
    assert other.code in (1, 2) and "is there already with 3 partitions, not 2" in other.err
    assert run("log", "create", url, parts, "--if-not-exists").out == f"{parts}: was there\n"
    assert f"there is a stream '{parts}' already" in line_of(run("log", "create", url, parts), 1)
    one = run("log", "create", url, f"{parts}:1", "--if-not-exists")
    assert one.code in (1, 2) and "is there already with 3 partitions, not 1" in one.err
    assert list(served.log.stream(parts).partitions) == ["0", "1", "2"]

    gone = run("log", "delete", url, plain, parts)
    assert (gone.code, gone.out) == (0, f"{plain}: deleted\n{parts}: deleted\n"), gone
    assert served.log.find(plain) is None and served.log.find(parts) is None
    assert plain in line_of(run("log", "delete", url, plain), 1)
    assert run("log", "delete", url, plain, "--if-exists").out == f"{plain}: was not there\n"


@pytest.mark.parametrize(("url", "door"), [(door, door) for door in PEERS], indirect=["url"])
def test_a_user_without_the_permission_is_told_which(run: Run, served: ServedHere, url: str, door: str) -> None:
    name = f"{door}-kept"
    served.log.create_stream(name)
    limited = url.replace("guest:guest", "reader:hidden-word")
    for words in (
        ("create", limited, f"other-{door}"),
        ("create", limited, f"other-{door}:2"),
        ("delete", limited, name),
    ):
        line = line_of(run("log", *words), 1)
        assert "configure" in line and words[2].partition(":")[0] in line
    assert served.log.find(name) is not None and served.log.find(f"other-{door}") is None
    for unseen in (name, f"none-{door}"):
        line = line_of(run("inspect", limited, unseen), 1)
        assert "access" in line or "may not read" in line, line
        assert "settings" not in line
    assert run("log", "create", limited, f"mine-{door}").code == 0
    assert run("log", "delete", limited, f"mine-{door}").code == 0


@pytest.mark.parametrize("url", ["amqp", "feedapi"], indirect=True)
def test_the_time_of_events_is_a_setting_of_our_log(run: Run, served: ServedHere, url: str) -> None:
    words = ("dated", "--timestamp-type", "create", "--segment-bytes", "1000", "--retention-bytes", "5000")
    assert run("log", "create", url, *words).code == 0
    config = served.log.stream("dated").config
    assert (config.timestamp_type, config.segment_max_bytes, config.retention_max_bytes) == ("create", 1_000, 5_000)
    assert run("log", "create", url, "dated", "--timestamp-type", "create", "--if-not-exists").code == 0
    conflict = line_of(run("log", "create", url, "dated", "--timestamp-type", "append", "--if-not-exists"), 1)
    assert "is there already with timestamp_type create" in conflict
    assert run("log", "delete", url, "dated").code == 0


@pytest.mark.parametrize("url", ["rabbitmq-stream"], indirect=True)
def test_what_rabbitmqs_protocol_cannot_say(run: Run, url: str) -> None:
    refused = line_of(run("log", "create", url, "dated", "--timestamp-type", "create"), 2)
    assert "--timestamp-type" in refused and "the url of another door" in refused
    assert "no whole second" in line_of(run("log", "create", url, "dated", "--retention-ms", "1500"), 2)
    assert "does not begin with 'amq.'" in line_of(run("log", "create", url, "amq.orders"), 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", "orders:2"), "expected the URL of a log and names of streams, or --data-dir"),
        (("delete", "orders"), "expected the URL of a log and names of streams, or --data-dir"),
        (("create", "--data-dir", "d", "amqp://h", "orders"), "not both"),
        (("create", "amqp://h#orders", "orders"), "names a stream already"),
        (("create", "http://h/orders", "orders"), "names a stream already"),
        (("create", "amqp://h", "orders:0"), "is not NAME[:PARTITIONS]"),
        (("delete", "--data-dir", ".", "orders"), "holds no log"),
    ],
)
def test_words_that_are_wrong(run: Run, words: tuple[str, ...], message: str) -> None:
    assert message in line_of(run("log", *words), 2)


def test_streams_of_a_directory_are_deleted(run: Run, tmp_path: Path) -> None:
    assert run("log", "create", "--data-dir", "kept", "orders:2", "old").code == 0
    gone = run("log", "delete", "--data-dir", "kept", "old", "older", "--if-exists")
    assert (gone.code, gone.out) == (0, "old: deleted\nolder: was not there\n")
    assert "there is no stream 'old'" in line_of(run("log", "delete", "--data-dir", "kept", "old"), 1)
    with ReferenceLog(tmp_path / "kept") as log:
        assert [stream.name for stream in log.streams()] == ["orders"]


def test_other_peers_say_where_it_is_done(run: Run, served: ServedHere, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = served.doors["event-hubs"]
    served.log.create_stream("told")
    assert "Event Hubs tells no settings of a hub" in json.loads(run("inspect", hub, "told", "--json").out)["why"]
    assert "give the url of another door, such as amqp://" in line_of(run("log", "create", hub, "orders"), 1)
    monkeypatch.setattr("spark_streams.client.amqp.peer.PRODUCT", "another")
    other = run("log", "create", served.doors["amqp"].replace("//", "//guest:guest@"), "orders")
    assert "AMQP has no request for it" in line_of(other, 1)
    found = run("inspect", served.doors["amqp"].replace("//", "//guest:guest@"), "told").out
    assert "Its settings are not known: AMQP has no request for the settings of an event stream\n" in found


@pytest.mark.parametrize(
    ("url", "created", "deleted"),
    [
        ("amqp", b"it was created", b"it was deleted"),
        ("rabbitmq-stream", bytes.fromhex("800d 0001"), bytes.fromhex("800e 0001")),
        ("feedapi", b"HTTP/1.1 201", b"HTTP/1.1 204"),
    ],
    indirect=["url"],
)
def test_a_lost_answer_is_told_as_that(run: Run, served: ServedHere, url: str, created: bytes, deleted: bytes) -> None:
    """The change is asked for once: a second request would be told that the stream is there, or is not."""
    with TcpProxy(urlsplit(url).port) as proxy:
        for command, answer in (("create", created), ("delete", deleted)):
            proxy.order(Break("cut", within=answer))
            line = line_of(run("log", command, proxy.url(url), "lost"), 1)
            assert proxy.pending == 0 and (served.log.find("lost") is not None) == (command == "create")
            assert str(proxy.port) in line and "already" not in line and "no stream" not in line


SLOW = "no answer within 5 ms: the peer hangs, or the network does"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (DeadlineExceeded(f"{SLOW}; raise option 'requestTimeout' if they are slow"), SLOW),
        (RemoteProtocolError("'$management' answered nothing: expected a map"), "'$management' answered nothing"),
        (NotFound("status 404", "no queue 'kept'", "the settings"), "no queue 'kept'"),
        (NotFound("status 404", None, "the settings of 'kept'"), "the settings of 'kept': status 404"),
    ],
    ids=["silence", "broken protocol", "not there", "without words"],
)
@pytest.mark.parametrize("url", ["amqp"], indirect=True)
def test_settings_that_cannot_be_had_do_not_lose_the_partitions(
    run: Run, served: ServedHere, monkeypatch: pytest.MonkeyPatch, url: str, fault: SparkStreamsError, why: str
) -> None:
    if served.log.find("found") is None:
        served.log.create_stream("found", 2)

    def settings(_: AmqpClient, stream: str) -> None:
        raise fault

    monkeypatch.setattr(AmqpClient, "settings", settings)
    done = run("inspect", url, "found", "--json")
    told = json.loads(done.out)
    assert (done.code, done.err, told["config"], len(told["partitions"])) == (0, "", None, 2)
    assert why in told["why"] and "option" not in told["why"]
    assert f"Its settings are not known: {told['why']}\n" in run("inspect", url, "found").out
