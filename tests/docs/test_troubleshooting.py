"""Each message of the code, and each condition of the log's doors, is on the page on troubleshooting or on another."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spark_streams.server.amqp import error_conditions
from spark_streams.wire.amqp.engine import session
from spark_streams.wire.rabbitmq.frames import ResponseCode, code_name
from tests.docs.messages import Message, messages, messages_of
from tests.docs.pages import ROOT, code_spans, tables

PAGE = "docs/troubleshooting.md"
PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))
BY_CLASS = {
    "LocalProtocolError": "a defect of ours: whoever reads it can only report it",
    "RemoteProtocolError": "what was wrong with a peer's bytes: for whoever mends the peer",
    "CorruptLog": "the file and the byte of a damaged log: what is to be done does not depend on which check failed",
    "NameTaken": "its words are the class's own, and the table of the classes explains them",
    "FilterError": "each shows the place in the filter, and what was expected there: the language has its page",
}
"""Errors of which the page has the class, and no messages, with the reason."""
OF_THE_SERVER = "spark_streams/server/"
"""What a door says reaches a client as the peer's words, under a condition that the page has (below)."""
OF_OTHER_CLIENTS = {
    *("NO_OFFSET", "STREAM_ALREADY_EXISTS", "SUBSCRIPTION_ID_ALREADY_EXISTS", "SUBSCRIPTION_ID_DOES_NOT_EXIST"),
    *("SASL_CANNOT_CHANGE_MECHANISM", "SASL_CANNOT_CHANGE_USERNAME", "SASL_ERROR"),
}
"""Codes that answer what our client does not do, or that it takes as an answer and no fault."""


def listed() -> list[list[str]]:
    """The pieces of each message, longer than a word, that stands in the first column of a page's table."""
    rows = [row for page in PAGES for row in (ROOT / page).read_text().splitlines() if row.startswith("| ")]
    spans = [span for row in rows for span in code_spans(row.strip("|").split(" | ")[0])]
    pieces = [[piece.strip(" '?") for piece in span.split("…")] for span in spans if len(span) > 10 and " " in span]
    return [[piece for piece in each if piece] for each in pieces if sum(map(len, each)) > 7]


def unexplained(said: Iterable[Message]) -> list[str]:
    """The messages that no page has a row for, and no class of theirs stands for."""
    known = listed()
    single = [each for each in said if each.error not in BY_CLASS and not each.file.startswith(OF_THE_SERVER)]
    return [str(each) for each in single if not any(all(piece in each.text for piece in row) for row in known)]


def test_each_message_is_explained() -> None:
    said = messages()
    assert len({each.text for each in said}) > 500
    assert {each.file.split("/")[0] for each in said} >= {"spark_streams", "sinks"}
    assert unexplained(said) == []


def test_a_message_without_a_row_is_noticed() -> None:
    source = """
def f(x):
    raise OptionError("url", f"the flux of '{x}' is not balanced")
    why = "its cheese is not ripe"
    raise Refused("condition", why, "what")
    given.refuse(("a", "b"), "no owls are admitted here")
    raise SchemaError(_words(x))
    raise RemoteProtocolError("bytes that nobody has a row for")
def _words(x):
    return f"a row of {x} without a reason"
"""
    found = unexplained(messages_of("spark_streams/spark/made_up.py", source))
    words = ["the flux of '…' is not balanced", "its cheese is not ripe", "no owls are admitted here", "a row of …"]
    assert len(found) == 4 and all(any(word in text for text in found) for word in words)
    assert unexplained(messages_of("spark_streams/server/made_up.py", source)) == []


def test_the_classes_that_stand_for_their_messages_are_explained() -> None:
    (rows,) = tables(PAGE, "Which error")
    assert BY_CLASS.keys() <= {span for row in rows for span in code_spans(row[0])}
    assert {each.error for each in messages()} >= BY_CLASS.keys()


def test_each_condition_of_the_amqp_door_is_explained() -> None:
    there = {value for each in (error_conditions, session) for name, value in vars(each).items() if name.isupper()}
    there = {value for value in there if isinstance(value, str)}
    assert len(there) >= 18
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


def test_messages_whose_words_stand_elsewhere_are_among_them() -> None:
    texts = [str(each) for each in messages()]
    for words in (
        *("The feed must be there", "cannot be published to", "older than the feed", "has written other rows"),
        *(
            "there are no patterns here",
            "a batch query has no triggers",
            "check the host in option",
            "nothing listens there",
        ),
    ):
        assert any(words in text for text in texts), words
