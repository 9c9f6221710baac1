"""filter explain: the tree, what a peer is asked to check in its own words, and what remains."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from spark_streams.filters import parse, to_protobuf
from tests.cli.conftest import Ran

Run = Callable[..., Ran]

TEXT = "type = 'order' AND publish_time >= -386380800000 AND subject LIKE 'eu-%'"


def explain(run: Run, text: str, to: str, *words: Any) -> str:
    done = run("filter", "explain", text, "--to", to, *words)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_amqp_with_event_stream_filters(run: Run) -> None:
    expected = """\
filter
  AND
  ├ type = 'order'
  ├ publish_time >= -386380800000
  └ subject LIKE 'eu-%'

pushed to amqp-events
  delivery annotations: event-streams-timestamp > -386380800001

remains
  type = 'order' AND subject LIKE 'eu-%'
"""
    assert explain(run, TEXT, "amqp-events") == expected
    protobuf = base64.b64encode(to_protobuf(parse(TEXT))).decode()
    assert explain(run, protobuf, "amqp-events") == expected


def test_amqp_with_full_sql(run: Run) -> None:
    text = "type = 'test' AND properties.subject <> 'x' AND offset > 'a'"
    assert (
        explain(run, text, "amqp-events", "--sql")
        == """\
filter
  AND
  ├ type = 'test'
  ├ properties.subject <> 'x'
  └ offset > 'a'

pushed to amqp-events
  delivery annotations: event-streams-offset > 'a'
  SQL: (a.type = 'test' OR a.type = 0xB5EB2D) AND p.subject IS NOT NULL AND p.subject <> 'x'

remains
  type = 'test'
"""
    )
    only_sql = explain(run, "type = 'A' AND offset > 'a'", "amqp-events", "--sql", "--no-event-streams")
    assert only_sql.endswith("  SQL: a.type = 'A' OR a.type = 65\n\nremains\n  type = 'A' AND offset > 'a'\n")
    draft = explain(run, "type = 'A'", "amqp-events", "--sql", "--draft-types")
    assert draft.endswith("pushed to amqp-events\n  nothing\n\nremains\n  type = 'A'\n")


def test_rabbitmq_streams(run: Run) -> None:
    text = "region IN ('eu', 'us') AND offset > 100"
    found = explain(run, text, "rabbitmq-stream", "--filter-value-from", "application_properties.region")
    assert (
        found
        == """\
filter
  AND
  ├ region IN ('eu', 'us')
  └ offset > 100

pushed to rabbitmq-stream
  starting offset 101
  filter values 'eu', 'us'

remains
  region IN ('eu', 'us')
"""
    )
    assert "filter values" not in explain(run, text, "rabbitmq-stream")


def test_feeds(run: Run) -> None:
    text = "type = 'order' AND [/data/id] = '7' AND key = 'k' AND body_size > 3"
    found = explain(
        run,
        text,
        "feedapi",
        "--feed-filter",
        "subject=/type",
        "--feed-filter",
        "id=/data/id",
        "--feed-filter",
        "key=key",
    )
    assert found.endswith(
        "pushed to feedapi\n  filter-subject=order\n  filter-id=7\n  filter-key=k\n\nremains\n  body_size > 3\n"
    )


def test_nothing_remains(run_process: Run) -> None:
    assert explain(run_process, "publish_time > 5", "amqp-events").endswith("\n\nremains\n  nothing\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["type = 'order", "--to", "feedapi"], "column 8: the text is not closed"),
        (["properties.user_id = 'x'", "--to", "amqp-events"], "user_id"),
        (["type = 1", "--to", "kafka"], "'kafka' is not one of"),
        (["type = 1"], "Missing option '--to'"),
        (["type = 1", "--to", "feedapi", "--sql"], "option '--sql': is for --to amqp-events, not feedapi"),
        (["type = 1", "--to", "amqp-events", "--feed-filter", "a=b"], "'--feed-filter': is for --to feedapi"),
        (["type = 1", "--to", "amqp-events", "--draft-types"], "give --sql beside it"),
        (["type = 1", "--to", "feedapi", "--feed-filter", "subject"], "'subject' is not NAME=FIELD"),
        (["type = 1", "--to", "rabbitmq-stream", "--filter-value-from", "body"], "'body' has no filter value"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(run: Run, words: list[str], said: str) -> None:
    done = run("filter", "explain", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err and "Traceback" not in done.err


def test_a_megabyte_is_refused_quickly_and_not_repeated(run: Run) -> None:
    done = run("filter", "explain", "-", "--to", "feedapi", stdin="x = 1 OR " * 120_000)
    assert done.code == 2 and len(done.err) < 2_000
    nested = run("filter", "explain", "(" * 10_000 + "x = 1" + ")" * 10_000, "--to", "feedapi")
    assert nested.code == 2 and "Traceback" not in nested.err and len(nested.err) < 2_000


def test_the_dialect_of_an_amqp_peer(run: Run) -> None:
    text = "properties.subject = 'a' AND publish_time >= 5 AND key = 'b'"
    rabbitmq = explain(run, text, "amqp-events", "--dialect", "rabbitmq")
    assert "SQL: p.subject = 'a'\n\nremains\n  publish_time >= 5 AND key = 'b'" in rabbitmq
    assert "pushed to amqp-events\n  nothing" in explain(run, text, "amqp-events", "--dialect", "event-hubs")
    assert "event-streams-timestamp > 4" in explain(run, text, "amqp-events", "--dialect", "event-streams")
    refused = run("filter", "explain", text, "--to", "feedapi", "--dialect", "rabbitmq")
    assert refused.code != 0 and "'--dialect': is for --to amqp-events, not feedapi" in refused.err
    refused = run("filter", "explain", text, "--to", "amqp-events", "--dialect", "event-hubs", "--sql")
    assert refused.code != 0 and "Azure Event Hubs has no such filters" in refused.err
