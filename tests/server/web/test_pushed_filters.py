"""What of a filter each protocol checks, as the window says it, is what ``spark-streams filter explain`` says."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.filters import parse
from spark_streams.server.web.pushed_filters import Pushed, pushed_filters

FILTERS = [
    "type = 'order'",
    "type = 'order' AND offset > 100 AND key = 'alice'",
    "publish_time >= -386380800000 AND body_size > 5",
    "properties.subject IN ('a', 'b') OR key = 'x'",
    "NOT (a = 'x' OR b LIKE 'y%')",
    "message_annotations.x = 'y'",
]


def explained(text: str, *options: str) -> tuple[list[str], str | None]:
    """The pushed lines and what remains, as the command prints them."""
    answer = CliRunner().invoke(main, ["filter", "explain", text, *options])
    assert answer.exit_code == 0, answer.output
    _, rest = answer.output.split("pushed to ")
    pushed, remains = rest.split("\n", 1)[1].split("remains\n")
    lines = [line.strip() for line in pushed.split("\n") if line.strip() and line.strip() != "nothing"]
    return lines, None if remains.strip() == "nothing" else remains.strip()


def said(found: list[Pushed], title: str) -> tuple[list[str], str | None]:
    one = next(each for each in found if each.title == title)
    return list(one.phrases), one.remains


@pytest.mark.parametrize("text", FILTERS)
def test_the_page_says_what_the_command_says(text: str) -> None:
    found = pushed_filters(parse(text))
    assert said(found, "amqp-events") == explained(text, "--to", "amqp-events", "--sql")
    assert said(found, "rabbitmq-stream") == explained(text, "--to", "rabbitmq-stream")


def test_where_publishers_give_filter_values() -> None:
    text = "type = 'order' AND key IN ('a', 'b') AND properties.subject = 's' AND message_annotations.x = 'y'"
    found = pushed_filters(parse(text))
    parts = ["application_properties.type", "key", "properties.subject"]
    titles = [each.title for each in found if "filterValueFrom" in each.title]
    assert titles == [f"rabbitmq-stream, where filterValueFrom is {part}" for part in parts]
    for part, title in zip(parts, titles, strict=True):
        options = ("--to", "rabbitmq-stream", "--filter-value-from", part)
        assert said(found, title) == explained(text, *options)


def test_the_logs_feeds_compare_keys_and_members() -> None:
    text = "key = 'a' AND type = 'order' AND \"/data/x\" = 'y' AND n > 5"
    options = ("--feed-filter", "key=key", "--feed-filter", "/type=type", "--feed-filter", "/data/x=/data/x")
    assert said(pushed_filters(parse(text)), "feedapi") == explained(text, "--to", "feedapi", *options)


def test_what_a_feed_cannot_have() -> None:
    found = pushed_filters(parse("\"/a~2\" = 'x'"))[-1]
    assert found.title == "feedapi"
    assert "~" in found.fault
    assert not found.phrases
