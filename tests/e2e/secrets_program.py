"""A program that signs in everywhere with marked secrets, and writes down all that Spark and we show of it.

usage: SECRETS_FOLDER=… python -m tests.e2e.secrets_program classic|connect FOLDER < secrets.json

With ``connect`` it is a client of a Spark Connect server, whose pages, log and event log are looked at.

SECRETS_FOLDER has the files password, token and wrong, which are to be found nowhere else, and gets the file
signatures: those that were made for Event Hubs.
What may hold no secret is below FOLDER, on stdout and on stderr.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import logging
import os
import re
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from spark_streams.sources.amqp_events import AmqpEventsDataSource
from spark_streams.sources.feedapi import FeedDataSource
from spark_streams.sources.rabbitmq_stream import RabbitStreamDataSource

import spark_streams
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread
from tests.client.feed.scripted import BadFeed, EchoingFeed, Part, Reply, numbered
from tests.e2e.connect_server import Served, connect_server
from tests.server.event_hubs.conftest import sas

CLASSES = {
    "amqp-events": AmqpEventsDataSource,
    "rabbitmq-stream": RabbitStreamDataSource,
    "feedapi": FeedDataSource,
}
STREAM, TARGET, NOT_THERE = "seen-in-plans", "seen-target", "not-there"
REGEX = "spark.sql.redaction.string.regex"
STREAMS_OF_FEEDS = tuple(int(number) for number in pyspark.__version__.split(".")[:2]) >= (4, 2)


class Shown:
    """Writes down what is shown, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def __call__(self, name: str, content: str | bytes) -> None:
        self._count += 1
        content = content if isinstance(content, bytes) else content.encode()
        (self.folder / f"{self._count:03}-{name}").write_bytes(content)

    def failure(self, name: str, run: Callable[[], Any]) -> None:
        """Run what has to fail, and write down how."""
        try:
            run()
        except Exception as fault:
            text = "".join(traceback.format_exception(fault))
            assert re.search("Error|NotFound|Refused|Failed", text), text
            self(name, f"{fault}\n{fault!r}\n{text}")
        else:
            raise AssertionError(f"{name} did not fail")


def ways(urls: dict[str, str], open_feed: str, secrets: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    """Return, for each format, the ways to give credentials."""
    signed = {door: url.replace("//", f"//ann:{secrets['url']}@") for door, url in urls.items()}
    user = {"username": "bob", "password": secrets["option"]}
    feed, open_signed = urls["feedapi"], open_feed.replace("//", f"//ann:{secrets['url']}@")
    return {
        "amqp-events": [{"url": signed["amqp"]}, {"url": urls["amqp"], **user}],
        "rabbitmq-stream": [{"url": signed["rabbitmq-stream"]}, {"url": urls["rabbitmq-stream"], **user}],
        "feedapi": [
            {"url": f"{feed}/STREAM", "token": secrets["token"]},
            {"url": f"{open_signed}/STREAM"},
        ],
    }


def at(name: str, way: dict[str, str], stream: str) -> dict[str, str]:
    """Return the options for a stream."""
    if name == "feedapi":
        return {**way, "url": way["url"].replace("STREAM", stream)}
    return {**way, "stream": stream}


def pickled(name: str, options: dict[str, str], shown: Shown, *, writing: bool = True) -> None:
    """Write down what Spark sends to executors: the reader and its partitions, of a batch and of a stream."""
    source = CLASSES[name](dict(options))
    dumps = CloudPickleSerializer().dumps
    schema = source.schema()
    reader = source.reader(schema)
    partitions = reader.partitions()
    assert partitions, "nothing was planned"
    for what in (source, reader):
        shown(f"{name}-pickle", dumps(what))
    for what in partitions:
        shown(f"{name}-partition", dumps(what))
    shown(f"{name}-repr", f"{source.options!r} {vars(reader)!r} {partitions!r}")
    if writing:
        shown(f"{name}-writer-pickle", dumps(source.writer(schema, False)))
    if name != "feedapi" or STREAMS_OF_FEEDS:
        stream = CLASSES[name]({**options, "startingOffsets": "earliest"}).streamReader(schema)
        shown(f"{name}-stream-pickle", dumps(stream))


def one_way(spark: Any, name: str, way: dict[str, str], shown: Shown, wrong: str) -> None:
    """Read and write with one way to sign in, and fail with it."""
    source, target = at(name, way, STREAM), at(name, way, TARGET)
    pickled(name, source, shown)
    frame = spark.read.format(name).options(**source).load()
    shown(f"{name}-plan", explained(frame))
    assert frame.select("value").count() >= 3
    frame.select("value").limit(2).write.format(name).options(**target).mode("append").save()

    def fail(what: str, options: dict[str, str]) -> None:
        shown.failure(f"{name}-{what}", lambda: spark.read.format(name).options(**options).load().count())

    if secret := next((option for option in ("password", "token") if option in way), None):
        fail("refused", {**source, secret: wrong})
        fail("bad-option", {**source, "nonsense": "1"})
        return
    fail("not-there", at(name, way, NOT_THERE))
    if "connectionString" in way:
        if "SharedAccessKey=" in way["connectionString"]:
            fail("refused", {**source, "connectionString": connection_string(way["connectionString"], key=wrong)})
    elif name != "feedapi":
        fail("refused", {**source, "url": source["url"].replace("ann:", "ann:x")})


def connection_string(endpoint: str, **more: str) -> str:
    """Return a connection string for rule dora at the endpoint of another.

    Args:
        endpoint: begins with ``Endpoint=sb://…/``.
        more: ``key`` or ``signature``.
    """
    if signature := more.get("signature"):
        return f"{endpoint.partition(';')[0]};SharedAccessSignature={signature};UseDevelopmentEmulator=true"
    rule = f"SharedAccessKeyName={more.get('rule', 'dora')};SharedAccessKey={more['key']}"
    return f"{endpoint.partition(';')[0]};{rule};UseDevelopmentEmulator=true"


def hubs(endpoint: str, secrets: dict[str, str], folder: Path) -> list[dict[str, str]]:
    """Return the ways to sign in at Event Hubs, and write down the signatures that are made for them."""
    host = endpoint.partition(";")[0].removeprefix("Endpoint=")
    signatures = [sas(host, "dora", secrets["key"], time.time() + 3_600 + n) for n in range(2)]
    (folder / "signatures").write_text("\n".join(re.findall("sig=([^&]+)", " ".join(signatures))))
    return [
        {"connectionString": connection_string(endpoint, key=secrets["key"])},
        {"connectionString": connection_string(endpoint, signature=signatures[0])},
        {"url": host.replace("sb://", "amqp://").rstrip("/"), "dialect": "event-hubs", "token": signatures[1]},
    ]


def misplaced(spark: Any, secrets: dict[str, str], shown: Shown) -> None:
    """Give a secret to a format that has no such option."""
    key = connection_string("Endpoint=sb://127.0.0.1:1/", key=secrets["key"])
    for name, url, option, secret in (
        ("rabbitmq-stream", "rabbitmq-stream://127.0.0.1:1", "connectionString", key),
        ("feedapi", "http://127.0.0.1:1/x", "connectionString", key),
        ("rabbitmq-stream", "rabbitmq-stream://127.0.0.1:1", "token", secrets["token"]),
        ("amqp-events", "amqp://127.0.0.1:1", "connectionString", key),
        ("amqp-events", "amqp://127.0.0.1:1", "conectionString", key),
    ):
        options = {"url": url, option: secret, **({} if name == "feedapi" else {"stream": STREAM})}
        shown.failure(
            f"{name}-bad-option", lambda name=name, o=options: spark.read.format(name).options(**o).load().count()
        )


def stream(spark: Any, name: str, ways: list[dict[str, str]], folder: Path, shown: Shown) -> None:
    """Run a stream that reads in one way, and writes in the other."""
    reader = spark.readStream.format(name).options(**at(name, ways[0], STREAM), startingOffsets="earliest")
    if name == "feedapi":
        reader = reader.option("spoolLocation", str(folder / "spool"))
    writer = reader.load().select("value").writeStream.format(name).options(**at(name, ways[1], TARGET))
    query = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}")).trigger(availableNow=True).start()
    assert query.awaitTermination(120) and query.exception() is None
    shown(f"{name}-stream-plan", printed(lambda: query.explain(True)))
    shown(f"{name}-progress", json.dumps([dict(progress) for progress in query.recentProgress], default=str))


def secret_in_query(spark: Any, secret: str, folder: Path, shown: Shown) -> None:
    """Read a feed whose address has a key in its query, and fail with a feed that repeats it."""
    with BadFeed({0: Part(numbered(0, 5))}) as feed:
        options = {"url": f"{feed.url}/{STREAM}?key={secret}"}
        pickled("feedapi", options, shown, writing=False)
        frame = spark.read.format("feedapi").options(**options).load()
        shown("feedapi-plan", explained(frame))
        assert frame.count() == 5
        if STREAMS_OF_FEEDS:
            reader = spark.readStream.format("feedapi").options(**options, startingOffsets="earliest")
            frame = reader.option("spoolLocation", str(folder / "spool")).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint-query"))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(120) and query.exception() is None
            shown("feedapi-stream-plan", printed(lambda: query.explain(True)))
        assert all(("key", secret) in asked.pairs for asked in feed.asked)
        feed.faults.extend([Reply(f"the key {secret} is not known".encode(), 403)] * 8)
        shown.failure("feedapi-refused", lambda: spark.read.format("feedapi").options(**options).load().count())


def echoed(spark: Any, secrets: dict[str, str], shown: Shown) -> None:
    """Fail in a task, at a feed that answers with the request's headers and query."""
    with EchoingFeed({0: Part(numbered(0, 5))}) as feed:
        url = f"{feed.url}/{STREAM}?key={secrets['query']}"
        for way in (
            {"url": url, "token": secrets["token"]},
            {"url": url.replace("//", f"//ann:{secrets['url']}@")},
            {"url": url, "username": "bob", "passwordFile": str(Path(os.environ["SECRETS_FOLDER"]) / "password")},
        ):
            shown.failure("feedapi-echo", lambda way=way: spark.read.format("feedapi").options(**way).load().count())


def rotating(spark: Any, name: str, way: dict[str, str], shown: Shown, files: Path) -> None:
    """Read with a secret from a file and from a function, and fail with a wrong one."""
    kind = "token" if name == "feedapi" else "password"
    rest = at(name, {option: said for option, said in way.items() if option != kind}, STREAM)
    provider = {f"{kind}Provider": f"{__package__}.secrets_program:provided_{kind}"}
    for each in ({f"{kind}File": str(files / kind)}, provider):
        pickled(name, {**rest, **each}, shown)
        frame = spark.read.format(name).options(**rest, **each).load()
        shown(f"{name}-plan", explained(frame))
        assert frame.select("value").count() >= 3
    wrong = {**rest, f"{kind}File": str(files / "wrong")}
    shown.failure(f"{name}-refused", lambda: spark.read.format(name).options(**wrong).load().count())
    raising = {**rest, f"{kind}Provider": f"{__package__}.secrets_program:raising"}
    shown.failure(f"{name}-raised", lambda: spark.read.format(name).options(**raising).load().count())


def _read(name: str) -> str:
    return (Path(os.environ["SECRETS_FOLDER"]) / name).read_text()


def provided_password() -> str:
    """Give what a vault would."""
    return _read("password")


def provided_token() -> str:
    """Give what a vault would."""
    return _read("token")


def raising() -> str:
    """Fail as a vault's client may, with what it was asked with."""
    raise ValueError(_read("wrong"))


def printed(run: Callable[[], Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        run()
    return said.getvalue()


def explained(frame: Any) -> str:
    """Return all that Spark tells of a query's plans."""
    said = printed(lambda: frame.explain(True)) + printed(lambda: frame.explain("formatted"))
    return said + (str(frame._jdf.queryExecution().toString()) if hasattr(frame, "_jdf") else "")


def pages(served: Served, connect: bool, shown: Shown) -> None:
    """Write down the pages of the UI, and what its REST API says."""
    base, api = served.ui, f"api/v1/applications/{served.application}"
    everything = json.loads(fetch(f"{base}/{api}/sql?length=1000&details=true&planDescription=true"))
    assert everything
    paths = [
        *("environment/", "SQL/", "jobs/", "stages/", "executors/", "StreamingQuery/"),
        *(f"SQL/execution/?id={each['id']}" for each in everything),
        f"{api}/sql?length=1000&details=true&planDescription=true",
        *(f"{api}/{name}" for name in ("environment", "jobs", "stages?details=true", "allexecutors")),
    ]
    for path in paths:
        shown("page", fetch(f"{base}/{path}"))
    if connect:
        clients = fetch(f"{base}/connect/")
        sessions = re.findall('href="/(connect/session/[^"]+)"', clients.decode())
        assert sessions
        shown("connect-page", clients)
        for path in sorted(set(sessions)):
            shown("connect-page", fetch(f"{base}/{html.unescape(path)}"))


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return bytes(answer.read())


def without_redaction(spark: Any, urls: dict[str, str], secrets: dict[str, str]) -> None:
    """Read with options that hold secrets, which a Spark Connect server shows then."""
    signed = urls["amqp"].replace("//", f"//cora:{secrets['shown-url']}@")
    user = {"username": "carl", "password": secrets["shown-option"]}
    spark.conf.set(REGEX, "(?!)")
    for name, options in {
        "amqp-events": {"url": signed},
        "rabbitmq-stream": {"url": urls["rabbitmq-stream"], **user},
        "feedapi": {"url": f"{urls['feedapi']}/STREAM", "token": secrets["shown-token"]},
    }.items():
        assert spark.read.format(name).options(**at(name, options, STREAM)).load().count() >= 3
    hub = connection_string(urls["event-hubs"], rule="dino", key=secrets["shown-key"])
    options = {"connectionString": hub, "stream": STREAM}
    assert spark.read.format("amqp-events").options(**options).load().count() >= 3
    spark.conf.unset(REGEX)


@contextlib.contextmanager
def running(connect: bool, folder: Path, settings: dict[str, str]) -> Iterator[tuple[Any, Served]]:
    """Start Spark, and end it; with what its pages need."""
    if connect:
        with connect_server(folder, settings, "INFO") as served:
            client = SparkSession.builder.remote(served.url).getOrCreate()
            assert type(client).__module__ == "pyspark.sql.connect.session"
            try:
                yield client, served
            finally:
                client.stop()
        return
    builder: Any = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    yield spark, Served("", spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId)
    spark.stop()


def main(connect: bool, folder: Path, secrets: dict[str, str]) -> None:
    logging.basicConfig(level=logging.INFO)
    shown_folder, events = folder / "shown", folder / "events"
    for each in (shown_folder, events):
        each.mkdir()
    shown = Shown(shown_folder)
    users = {
        "ann": secrets["url"],
        "bob": secrets["option"],
        "eve": secrets["password"],
        "cora": secrets["shown-url"],
        "carl": secrets["shown-option"],
    }
    rules = {"dora": secrets["key"], "dino": secrets["shown-key"]}
    with ReferenceLog(folder / "log-1") as first, ReferenceLog(folder / "log-2") as second:
        for log in (first, second):
            for name in (STREAM, TARGET):
                log.create_stream(name, 1)
        settings = {
            "rabbit": RabbitConfig(port=0, users=users, authentication_delay_ms=0),
            "feed": FeedConfig(port=0, tokens=(secrets["token"], secrets["bearer"], secrets["shown-token"])),
        }
        sparks = {
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
            "spark.sql.shuffle.partitions": "2",
            "spark.task.maxFailures": "1",
        }
        with (
            ServerThread(
                first, AmqpConfig(port=0, users=users), EventHubsConfig(port=0, users=rules), **settings
            ) as server,
            ServerThread(second, feed=FeedConfig(port=0)) as opened,
            running(connect, folder, sparks) as (spark, served),
        ):
            spark_streams.register(spark)
            for url, token in ((server.urls["feedapi"], secrets["token"]), (opened.urls["feedapi"], "")):
                rows = spark.createDataFrame([(f"v{n}",) for n in range(3)], "value string")
                writer = rows.write.format("feedapi").option("url", f"{url}/{STREAM}")
                (writer.option("token", token) if token else writer).mode("append").save()
            for name, found in ways(server.urls, opened.urls["feedapi"], secrets).items():
                for way in found:
                    one_way(spark, name, way, shown, secrets["wrong"])
                if name != "feedapi" or STREAMS_OF_FEEDS:
                    stream(spark, name, found, folder, shown)
                user = {} if name == "feedapi" else {"username": "eve"}
                rotating(spark, name, {**found[-1 if user else 0], **user}, shown, Path(os.environ["SECRETS_FOLDER"]))
                print("done:", name, flush=True)
            at_hubs = hubs(server.urls["event-hubs"], secrets, Path(os.environ["SECRETS_FOLDER"]))
            for way in at_hubs:
                one_way(spark, "amqp-events", way, shown, secrets["wrong"])
            for number, pair in enumerate((at_hubs[:2], at_hubs[1:])):
                (folder / f"hub-{number}").mkdir()
                stream(spark, "amqp-events", pair, folder / f"hub-{number}", shown)
            misplaced(spark, secrets, shown)
            secret_in_query(spark, secrets["query"], folder, shown)
            echoed(spark, secrets, shown)
            if connect:
                without_redaction(spark, server.urls, secrets)
            pages(served, connect, shown)


if __name__ == "__main__":
    main(sys.argv[1] == "connect", Path(sys.argv[2]), json.load(sys.stdin))
