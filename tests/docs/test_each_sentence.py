"""Each sentence of the code is on a page, or is known to be no message, or only a part of one: nothing else is left.

``tests/docs/test_troubleshooting.py`` looks at what errors are made with. Here are all other texts, so that a message
cannot be missed because it stands in a table, or comes as an argument.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from tests.docs.messages import messages
from tests.docs.sentences import Sentence, sentences_of
from tests.docs.syntax import sources
from tests.docs.test_troubleshooting import listed

NO_MESSAGE = {
    "a door's answer: it reaches a client as the peer's words, under a condition or status that the page has": (
        *("spark_streams/server/amqp/", "spark_streams/server/event_hubs/"),
        *("spark_streams/server/feed/", "spark_streams/server/http/", "spark_streams/server/rabbitmq/"),
    ),
    "what the log's window shows: the page has it where it stands": ("spark_streams/server/web/",),
    "of a FilterError, which shows the place in the filter; the language has its page": ("spark_streams/filters/",),
    "of a CorruptLog, or of the log as a library: bytes that fail a check, or an array of another shape": (
        *("spark_streams/log/format/", "spark_streams/log/storage/", "spark_streams/wire/columnar/arrays.py"),
        "spark_streams/log/stream_metadata.py: CRC-32C is …, the file says",
        "spark_streams/log/stream_metadata.py: the folder is another stream's than",
        "spark_streams/log/stream_metadata.py: what is known about the split of partition … is missing",
        "spark_streams/log/stream_metadata.py: and the folder of partition … is missing",
        "spark_streams/log/partition_tree.py: is gone without children",
    ),
    "of a RemoteProtocolError or LocalProtocolError: the page has the class": (
        *(
            "spark_streams/wire/feed/discovery.py",
            "spark_streams/wire/rabbitmq/frames.py",
            "spark_streams/wire/amqp/engine/",
        ),
        "spark_streams/client/amqp/row_decoder.py: a delivery says that it comes from partition",
        "spark_streams/wire/amqp/shared_access.py: with an expiry 'se' that is no number of seconds",
    ),
    "of a NameTaken: the page has the class": (
        "spark_streams/errors.py: which addresses may mean",
        "spark_streams/errors.py: would be the name of",
    ),
    "what a query is told, to be put into the command's own words": ("spark_streams/cli/errors.py",),
    "help of an option of a command or of pytest, handed to what makes the option": (
        *("spark_streams/cli/credentials.py", "spark_streams/protocols.py", "spark_streams/testing/pytest_plugin.py"),
        "spark_streams/cli/log/serve.py: Where the … listens",
        "spark_streams/cli/log/serve.py: nobody sees them in the list of processes",
        "spark_streams/cli/log/serve.py: PEM file of",
        "spark_streams/cli/peers/copy.py: , if it is a feed",
        "spark_streams/cli/peers/peer.py: Speak version 1 of FeedAPI",
        "spark_streams/cli/peers/peer.py: The dialect of an AMQP peer",
        "spark_streams/cli/peers/peer.py: File with the token of",
        "spark_streams/cli/peers/peer.py: Bearer token of",
    ),
    "what a figure is, shown beside it; the page has the same table": ("spark_streams/spark/progress/figures.py",),
    "what the demo shows": ("spark_streams/cli/demo.py",),
    "a line of the log, or a part of one": (
        "spark_streams/spark/log_lines.py",
        "spark_streams/spark/progress/listener.py",
        "spark_streams/spark/progress/batch_progress.py",
        "spark_streams/spark/pushdown/spark_filters.py",
        "spark_streams/spark/sink/writer.py: rows delivered, … rows/s",
        "spark_streams/server/admission.py",
        "spark_streams/spark/pushdown/unseen_names.py",
    ),
    "for a program: SQL, HTTP, Python, a pattern; or a repr, or a name in a picture": (
        "spark_streams/log/state_store.py",
        "spark_streams/spark/session_python.py: import sys;",
        "spark_streams/options/connection_string.py: (?=",
        "spark_streams/instants.py: (?P<year>",
        "spark_streams/testing/query.py: <KeptQuery",
        "spark_streams/testing/notebook.py: <iframe src=",
        "spark_streams/wire/rabbitmq/connection_commands.py: SaslAuthenticate, answered",
        "spark_streams/wire/rabbitmq/connection_commands.py: Open, answered",
    ),
    "what was being done, in front of a message": (
        "spark_streams/client/rabbitmq/client.py: the list of streams: metadata",
        "spark_streams/client/rabbitmq/stream_publisher.py: query the publisher's sequence",
    ),
    "the end of a message that the page has the beginning of": (
        "spark_streams/cli/peers/log_peers.py: tell them over AMQP, with a url",
        "spark_streams/client/proxy.py: expected http://[user:password@]host:port",
        "spark_streams/client/tls.py: and check the clock of this machine",
        "spark_streams/client/tls.py: to the PEM file of the authority that signed it",
        "spark_streams/options/amqp_events.py: name the stream with option",
        "spark_streams/options/rabbitmq_stream.py: name the stream with option",
        "spark_streams/options/feedapi.py: the feed's address goes into option 'url'",
        "spark_streams/options/positions.py: a batch query that … has nothing to read",
        "spark_streams/position.py: at the first event matching",
        "spark_streams/server/appender.py: : make room on the disk of the log",
        "spark_streams/spark/feed/micro_batch.py: , the end of a closed partition",
        "spark_streams/spark/schemas.py: : an instant needs a time zone",
        "spark_streams/spark/schemas.py: : convert it, such as",
        "spark_streams/spark/session_python.py: which is",
        "spark_streams/spark/source/ranges.py: with timestamp … ms or later",
        "spark_streams/spark/sink/sink.py: goes out again",
        "sinks/amqp_events.py: goes out again",
        "sinks/feedapi.py: a log remembers the last numbers of",
        "sinks/feedapi.py: where it has it already",
        "sinks/rabbitmq_stream.py: where it has it already",
        "sinks/amqp_events.py: option 'stream' is not given",
        "sinks/rabbitmq_stream.py: neither option 'stream' nor 'superStream' is given",
        "spark_streams/wire/amqp/dialects/event_hubs.py: the SASL mechanism …, or a host of",
    ),
}
"""Why a sentence has no row, to where it stands: a folder, a file, or a file and a part of the sentence."""


def is_at(place: str, sentence: Sentence) -> bool:
    """Whether an entry of ``NO_MESSAGE`` is of a sentence."""
    file, _, part = place.partition(": ")
    there = sentence.file.startswith(file) if file.endswith("/") else sentence.file == file
    return there and all(piece in sentence.text for piece in part.split("…"))


@functools.cache
def sentences() -> list[Sentence]:
    """All sentences of what is shipped that no error is made with where they stand."""
    texts = {text for each in messages() for text in each.text.split("\n")}
    return [each for file, text in sources().items() for each in sentences_of(file, text) if each.text not in texts]


def without_a_row(said: Iterable[Sentence]) -> list[Sentence]:
    """The sentences that stand in no table of a page."""
    known = listed()
    return [each for each in said if not any(all(piece in each.text for piece in row) for row in known)]


def left(said: Iterable[Sentence]) -> list[Sentence]:
    """The sentences that stand in no table of a page, and of which nothing else is known."""
    places = [place for of_a_reason in NO_MESSAGE.values() for place in of_a_reason]
    return [each for each in without_a_row(said) if not any(is_at(place, each) for place in places)]


def test_each_sentence_is_explained_or_is_no_message() -> None:
    assert len(sentences()) > 400
    assert left(sentences()) == []


def test_each_exception_is_of_a_sentence() -> None:
    there = without_a_row(sentences())
    places = [place for of_a_reason in NO_MESSAGE.values() for place in of_a_reason]
    assert [place for place in places if not any(is_at(place, each) for each in there)] == []


def test_a_sentence_that_comes_from_elsewhere_is_noticed() -> None:
    source = '''
"""A page of the documentation that is not about any error."""
REASONS = {"url": "owls live in the tower of this url", "stream": f"the moon of {NAME} is not full tonight"}
log.warning("the log line says what it does all the time")
@click.option("--x", help="the help of an option says what it does")
def f(x):
    """The documentation of a function that does something."""
    name = given.text("name", "a name that everybody has heard of")
    assert x, "an assertion says what we believe in here"
    shown = Fault(x, reason="nobody has seen this cat before today")
    return f"{'one of the ravens has left the castle' if x else 'four words are few'}"
'''
    found = left(sentences_of("spark_streams/spark/made_up.py", source))
    words = ["owls live in the", "the moon of … is not full", "nobody has seen this cat", "one of the ravens has left"]
    assert len(found) == 4 and all(any(word in each.text for each in found) for word in words)
    # A folder of which all is known is one of whose texts the reader needs no row.
    assert left(sentences_of("spark_streams/server/amqp/made_up.py", source)) == []


def test_reasons_do_not_cover_what_users_of_spark_read() -> None:
    files = {place for of_a_reason in NO_MESSAGE.values() for place in of_a_reason if ": " not in place}
    assert not [
        file for file in files if re.match(r"(spark_streams/(options|client|spark/(source|feed|sink))|sinks)/", file)
    ]
