"""The page on troubleshooting has each message that a query can end with, and each condition of the log's doors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from spark_streams.server.amqp import error_conditions
from spark_streams.wire.rabbitmq.response_codes import ResponseCode, code_name
from tests.docs.pages import ERRORS, ROOT, code_spans
from tests.docs.test_pages import CODE, text_of

PAGE = "docs/troubleshooting.md"
PAGES = (
    PAGE,
    *(f"docs/{form}{kind}.md" for form in ("amqp-events", "rabbitmq-stream", "feedapi") for kind in ("", "-sink")),
)
SAYS_WHAT_TO_DO = {"OptionError", "SchemaError", "FilterError"}
"""Their messages are about what the user wrote, and say what was expected: the page has the usual ones only."""
OF_THE_PEER = {"LocalProtocolError", "RemoteProtocolError"}
"""Their messages are about bytes: the page has the classes."""
OF_OTHER_CLIENTS = {
    *("NO_OFFSET", "STREAM_ALREADY_EXISTS", "SUBSCRIPTION_ID_ALREADY_EXISTS", "SUBSCRIPTION_ID_DOES_NOT_EXIST"),
    *("SASL_CANNOT_CHANGE_MECHANISM", "SASL_CANNOT_CHANGE_USERNAME", "SASL_CHALLENGE", "SASL_ERROR"),
}
"""Codes that answer what our client does not do, or that it takes as an answer and no fault."""
FOLDERS = ("spark_streams/spark/", "spark_streams/client/", "sources/", "sinks/")


def listed() -> list[list[str]]:
    """The pieces of each message, longer than a word, that stands in the first column of a page's table."""
    rows = [row for page in PAGES for row in (ROOT / page).read_text().splitlines() if row.startswith("| ")]
    spans = [span for row in rows for span in code_spans(row.strip("|").split(" | ")[0])]
    return [[piece.strip(" '?") for piece in span.split("…")] for span in spans if len(span) > 10 and " " in span]


def raised() -> Iterator[tuple[str, str]]:
    """Where an error of ours is made with words of its own, and which."""
    made = ERRORS - SAYS_WHAT_TO_DO - OF_THE_PEER
    for file in CODE:
        name = str(file.relative_to(ROOT))
        if name.startswith(FOLDERS):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in made:
                    texts = [text for argument in node.args if (text := text_of(argument)) is not None]
                    if any(len(re.findall(r"[a-zA-Z]{2,}", text)) > 2 for text in texts):
                        yield f"{name}:{node.lineno} {node.func.id}", "\n".join(texts)


def test_each_message_that_a_query_ends_with_is_explained() -> None:
    known = listed()
    there = list(raised())
    assert len(there) > 40
    assert [f"{where}: {text}" for where, text in there if not any(all(p in text for p in m) for m in known)] == []


def test_each_condition_of_the_amqp_door_is_explained() -> None:
    there = {value for name, value in vars(error_conditions).items() if name.isupper()}
    assert len(there) >= 16
    page = (ROOT / PAGE).read_text()
    assert {condition for condition in there if f"`{condition}`" not in page} == set()


def test_each_code_of_the_rabbitmq_door_that_a_query_can_meet_is_explained() -> None:
    used = {
        code
        for file in (ROOT / "spark_streams/server/rabbitmq").glob("*.py")
        for code in re.findall(r"ResponseCode\.([A-Z_]+)", file.read_text())
    }
    page = (ROOT / PAGE).read_text()
    missing = {code for code in used if f"`{code_name(ResponseCode[code])}`" not in page}
    assert missing == {"OK", *OF_OTHER_CLIENTS}


def test_each_message_of_publishing_to_a_feed_is_among_them() -> None:
    """A message whose words stand elsewhere than in the error's call would be in no check."""
    made = [text for where, text in raised() if where.startswith("spark_streams/client/feed/publisher.py")]
    for words in ("The feed must be there", "cannot be published to", "older than the feed", "has written other rows"):
        assert any(words in text for text in made), words
