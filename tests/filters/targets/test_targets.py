"""What each target is asked, word by word; that it is right is checked in tests/filters/test_split.py."""

from __future__ import annotations

from decimal import Decimal

import pytest

from spark_streams.filters.describe import to_text
from spark_streams.filters.split import split
from spark_streams.filters.targets.amqp import AmqpCapability, AmqpSplit, split_for_amqp
from spark_streams.filters.targets.event_streams import EventStreams
from spark_streams.filters.targets.feed import FeedSplit, split_for_feed
from spark_streams.filters.targets.rabbitmq import RabbitSplit, split_for_rabbitmq
from spark_streams.filters.targets.sql_text import Term, compare, decimal
from spark_streams.filters.text import parse
from spark_streams.filters.tree import KEY, Reference, property_of
from tests.filters.sql_peers import MAX_TOKENS, Parsed, tokens_of

EVENT_STREAMS = AmqpCapability(event_streams=True, filtex_sql=False)
DRAFT = AmqpCapability(event_streams=False, filtex_sql=True)
RABBITMQ = AmqpCapability(event_streams=False, filtex_sql=True, rabbitmq_types=True)
OUR_LOG = AmqpCapability(event_streams=True, filtex_sql=True, rabbitmq_types=True)


def left(found: AmqpSplit | RabbitSplit | FeedSplit) -> str | None:
    """Return the residual as text."""
    return None if found.residual is None else to_text(found.residual)


ALL = None
"""As the residual in a table below: the whole filter remains, as it was written."""
NONE = ""
"""Nothing remains."""


@pytest.mark.parametrize(
    ("text", "words", "remains"),
    [
        ("publish_time >= -386380800000", "delivery annotations: event-streams-timestamp > -386380800001", NONE),
        ("publish_time > 5 AND publish_time > 7.5", "delivery annotations: event-streams-timestamp > 7", NONE),
        ("offset > 'a' AND offset > 'b'", "delivery annotations: event-streams-offset > 'b'", NONE),
        ("offset >= 'it''s'", "event streams SQL: d.event-streams-offset >= 'it''s'", NONE),
        ("offset IN ('a')", "event streams SQL: d.event-streams-offset = 'a'", NONE),
        (
            "offset NOT IN ('a', 'b')",
            "event streams SQL: d.event-streams-offset <> 'a' AND d.event-streams-offset <> 'b'",
            NONE,
        ),
        (
            "publish_time BETWEEN -5 AND 100",
            "delivery annotations: event-streams-timestamp > -6; event streams SQL: d.event-streams-timestamp <= 100",
            NONE,
        ),
        # SQL has no times before 1970 (Z-10).
        (
            "publish_time BETWEEN -10 AND -5",
            "delivery annotations: event-streams-timestamp > -11; event streams SQL: d.event-streams-timestamp < 0",
            "publish_time <= -5",
        ),
        (
            "publish_time = -5",
            "delivery annotations: event-streams-timestamp > -6; event streams SQL: d.event-streams-timestamp < 0",
            ALL,
        ),
        ("publish_time = 5", "event streams SQL: d.event-streams-timestamp = 5", NONE),
        ("publish_time <= 4.5", "event streams SQL: d.event-streams-timestamp <= 4", NONE),
        ("publish_time = 4.5", "event streams SQL: FALSE", NONE),
        (
            "publish_time <> 5",
            "event streams SQL: d.event-streams-timestamp <= 4 OR d.event-streams-timestamp >= 6",
            NONE,
        ),
        (
            "publish_time IN (1, 2, 3, 7)",
            "event streams SQL: d.event-streams-timestamp >= 1 AND d.event-streams-timestamp <= 3"
            " OR d.event-streams-timestamp = 7",
            NONE,
        ),
        # There are no parentheses: an OR within an AND is multiplied out.
        (
            "(publish_time > 5 OR offset = 'x') AND offset <> 'y'",
            "event streams SQL: d.event-streams-timestamp >= 6 AND d.event-streams-offset <> 'y'"
            " OR d.event-streams-offset = 'x' AND d.event-streams-offset <> 'y'",
            NONE,
        ),
        # A lower bound before 1970 within an OR cannot be said, so the OR cannot.
        ("publish_time >= -5 OR offset = 'x'", None, ALL),
        ("publish_time > 5 OR type = 'a'", None, ALL),
        (
            "(publish_time > 5 AND type = 'a') OR offset = 'x'",
            "event streams SQL: d.event-streams-timestamp >= 6 OR d.event-streams-offset = 'x'",
            "publish_time > 5 AND type = 'a' OR offset = 'x'",
        ),
        ("offset > 'é'", None, ALL),  # offsets are symbols: ASCII (Z-11)
        ("offset > 5", None, ALL),  # opaque offsets are no numbers to a peer
        ("offset LIKE 'a%'", None, ALL),
        ("offset IS NOT NULL", None, NONE),
        ("offset IS NULL", "event streams SQL: FALSE", NONE),
        ("publish_time IS NULL", None, ALL),
        ("key = 'a' AND partition = '0' AND body_size > 5", None, ALL),
    ],
)
def test_event_streams(text: str, words: str | None, remains: str | None) -> None:
    found = split_for_amqp(parse(text), EVENT_STREAMS)
    assert (found.words, left(found) or NONE) == (words, text if remains is ALL else remains)


@pytest.mark.parametrize(
    ("text", "draft", "rabbitmq"),
    [
        ("type = 'order'", "a.type = 'order'", "a.type = 'order'"),
        ("application_properties.type = 'order'", "a.type = 'order'", "a.type = 'order'"),
        # base64 of three bytes, a boolean, numbers, a char, a uuid: each has the text too (Z-16)
        ("type = 'test'", "a.type = 'test' OR a.type = 0xB5EB2D", "a.type = 'test' OR a.type = 0xB5EB2D"),
        (
            "type = 'true'",
            "a.type = 'true' OR a.type = TRUE OR a.type = 0xB6BB9E",
            "a.type = 'true' OR a.type = TRUE OR a.type = 0xB6BB9E",
        ),
        (
            "type = '15'",
            "a.type = '15' OR a.type = 15 OR a.type IS NULL",
            "a.type = '15' OR a.type = 15 OR a.type IS NULL",
        ),
        ("type = '5'", None, "a.type = '5' OR a.type = 5 OR a.type IS NULL OR a.type = 53"),
        (
            "type = '0.5'",
            "a.type = '0.5' OR (a.type >= 0.4999995 AND a.type <= 0.5000005) OR a.type IS NULL",
            "a.type = '0.5' OR (a.type >= 0.4999995 AND a.type <= 0.5000005) OR a.type IS NULL",
        ),
        ("type = 'A'", None, "a.type = 'A' OR a.type = 65"),
        (
            "type = '00112233-4455-6677-8899-aabbccddeeff'",
            None,
            "a.type = '00112233-4455-6677-8899-aabbccddeeff' OR a.type = 0x00112233445566778899AABBCCDDEEFF",
        ),
        ("type IN ('order', 'eu-1')", "a.type IN ('order', 'eu-1')", "a.type IN ('order', 'eu-1')"),
        # no float or decimal has such an exponent, or so many digits: these are strings
        ("type = '1e-9999999999999999999'", *["a.type = '1e-9999999999999999999'"] * 2),
        (f"type = '{'7' * 65}'", *[f"a.type = '{'7' * 65}'"] * 2),
        ("type = ''", None, None),  # no bytes have this text too, and no constant says them
        ("type = 'NaN'", None, None),
        ("type = '[1]'", None, None),
        ("type = 'a\tb'", None, None),
        ("type = 'it''s'", "a.type = 'it''s'", "a.type = 'it''s'"),
        ("type <> 'order'", None, None),
        ("type NOT IN ('order')", None, None),
        ("type NOT LIKE 'eu-%'", None, None),
        ("type > 'order'", None, None),
        ("type IS NOT NULL", None, None),
        ("type IS NULL", "a.type IS NULL", "a.type IS NULL"),
        ("type CONTAINS ANY ('order')", None, None),
        ("type LIKE 'eu-w%'", "a.type LIKE 'eu-w%'", "a.type LIKE 'eu-w%'"),
        ("type LIKE '%@example.com'", "a.type LIKE '%@example.com'", "a.type LIKE '%@example.com'"),
        ("type LIKE 'x-_%y-%-z'", "a.type LIKE 'x-%-z'", "a.type LIKE 'x-%-z'"),
        ("type LIKE 'order'", "a.type = 'order'", "a.type = 'order'"),
        ("type LIKE 'or%'", None, "a.type LIKE 'or%' OR (a.type >= 0xA2B0 AND a.type < 0xA2C0)"),
        ("type LIKE 'A%'", None, "a.type LIKE 'A%' OR a.type = 65 OR (a.type >= 0x00 AND a.type < 0x04)"),
        ("type LIKE '%ä'", None, "a.type LIKE '%ä' OR a.type = 228"),
        ("type LIKE '%x%'", None, None),
        ("type LIKE '%'", None, None),
        (
            "n >= 5",
            None,
            "a.n >= 5 OR (a.n >= '+' AND a.n < ':') OR (a.n >= 0xD0 AND a.n < 0xFC)"
            " OR (a.n >= 48 AND a.n <= 57) OR a.n IS NULL",
        ),
        ("n <> 5", None, None),
        ("[x-y] = 'order'", "[x-y] = 'order'", "[x-y] = 'order'"),
        ("[a]]b[] = 'order'", "[a]]b[[] = 'order'", "[a]]b[[] = 'order'"),
        ("[and] = 'order'", "[and] = 'order'", "[and] = 'order'"),
        ("[a\tb] = 'order'", None, None),
        ("properties.message_id = '12'", *["p.message_id = '12' OR p.message_id = 12"] * 2),
        ("properties.message_id <> 'a'", *["p.message_id IS NOT NULL"] * 2),
        ("properties.subject = 5", *["p.subject IS NOT NULL"] * 2),
        ("properties.subject LIKE 'a%b%c'", *["p.subject LIKE 'a%c'"] * 2),
        ("message_annotations.x = 'order'", None, None),
        ("key = 'a' AND publish_time > 5 AND offset > 'a'", None, None),
    ],
)
def test_full_sql_that_lets_more_pass(text: str, draft: str | None, rabbitmq: str | None) -> None:
    for capability, expected in ((DRAFT, draft), (RABBITMQ, rabbitmq)):
        found = split_for_amqp(parse(text), capability)
        assert (found.sql, left(found)) == (expected, to_text(parse(text)))


@pytest.mark.parametrize(
    ("text", "draft", "rabbitmq"),
    [
        ("properties.subject = 'a'", "p.subject = 'a'", "p.subject = 'a'"),
        ("properties.subject IN ('a', 'b')", *["p.subject IN ('a', 'b')"] * 2),
        ("properties.subject <> 'b'", *["p.subject IS NOT NULL AND p.subject <> 'b'"] * 2),
        ("NOT properties.subject IN ('a', 'b')", *["p.subject IS NOT NULL AND p.subject NOT IN ('a', 'b')"] * 2),
        ("properties.subject LIKE 'a%c'", *["p.subject LIKE 'a%c'"] * 2),
        ("properties.subject NOT LIKE 'a%'", *["p.subject IS NOT NULL AND p.subject NOT LIKE 'a%'"] * 2),
        ("properties.subject LIKE 'order'", *["p.subject = 'order'"] * 2),
        ("properties.subject NOT LIKE 'order'", *["p.subject IS NOT NULL AND p.subject <> 'order'"] * 2),
        ("properties.subject LIKE '%'", *["p.subject LIKE '%'"] * 2),
        ("properties.subject NOT LIKE '%c'", *["p.subject IS NOT NULL AND p.subject NOT LIKE '%c'"] * 2),
        ("properties.subject IS NULL", *["p.subject IS NULL"] * 2),
        ("properties.message_id IS NOT NULL", *["p.message_id IS NOT NULL"] * 2),
        ("properties.subject BETWEEN 'a' AND 'b'", "p.subject IS NOT NULL", "p.subject >= 'a' AND p.subject <= 'b'"),
        ("properties.group_sequence IN (1, 2, 7)", "p.group_sequence IN (1, 2, 7)",
         "(p.group_sequence >= 1 AND p.group_sequence <= 2) OR p.group_sequence = 7"),
        ("properties.group_sequence >= 5", "p.group_sequence IS NOT NULL", "p.group_sequence >= 5"),
        ("properties.group_sequence = 1.5", *["FALSE"] * 2),
        ("properties.creation_time = '5'", *["p.creation_time = 5"] * 2),
        ("event_time BETWEEN 5 AND 9", *["p.creation_time >= 5 AND p.creation_time <= 9"] * 2),
        # 0 is unset (Z-15)
        (
            "event_time >= -5",
            *["(p.creation_time >= -5 AND p.creation_time <= -1) OR p.creation_time >= 1"] * 2,
        ),
        ("event_time IS NULL", *["p.creation_time IS NULL OR p.creation_time = 0"] * 2),
        (
            "properties.subject = 'a' OR properties.subject <> 'b' AND event_time = 5",
            *["p.subject = 'a' OR (p.subject IS NOT NULL AND p.subject <> 'b' AND p.creation_time = 5)"] * 2,
        ),
    ],
)  # fmt: skip
def test_full_sql_that_is_exact_where_types_are_known(text: str, draft: str, rabbitmq: str) -> None:
    found = split_for_amqp(parse(text), RABBITMQ)
    assert (found.sql, found.residual) == (rabbitmq, None)
    found = split_for_amqp(parse(text), DRAFT)
    assert (found.sql, left(found)) == (draft, None if draft == rabbitmq or "IN (" in draft else to_text(parse(text)))


def test_each_part_of_an_and_goes_where_it_can_be_said() -> None:
    text = "type = 'order' AND publish_time >= -386380800000 AND subject LIKE 'eu-%' AND offset < 'x' AND key = 'k'"
    found = split_for_amqp(parse(text), OUR_LOG)
    assert found.annotations == {"event-streams-timestamp": -386380800001}
    assert found.event_streams_sql == "d.event-streams-offset < 'x'"
    assert found.sql == "a.type = 'order' AND a.subject LIKE 'eu-%'"
    assert left(found) == "type = 'order' AND subject LIKE 'eu-%' AND key = 'k'"
    assert found.words == (
        "delivery annotations: event-streams-timestamp > -386380800001; "
        "event streams SQL: d.event-streams-offset < 'x'; "
        "SQL: a.type = 'order' AND a.subject LIKE 'eu-%'"
    )


def test_a_peer_without_filters_is_asked_nothing() -> None:
    found = split_for_amqp(parse("offset > 'a'"), AmqpCapability(False, False))
    assert (found.words, found.annotations, left(found)) == (None, None, "offset > 'a'")


def test_full_sql_keeps_to_what_rabbitmq_takes() -> None:
    many = ", ".join(f"'value-{n}'" for n in range(150))
    few = "properties.subject = 'a'"
    found = split_for_amqp(parse(f"type IN ({many}) AND {few}"), RABBITMQ)
    assert (found.sql, left(found)) == ("p.subject = 'a'", f"type IN ({many})")
    long = "x" * 4100
    found = split_for_amqp(parse(f"{few} AND type = '{long}-'"), RABBITMQ)
    assert found.sql == "p.subject = 'a'"
    largest = next(n for n in range(150, 0, -1) if split_for_amqp(in_list(n), RABBITMQ).sql)
    assert len(tokens_of(split_for_amqp(in_list(largest), RABBITMQ).sql or "")) in (MAX_TOKENS - 1, MAX_TOKENS)


@pytest.mark.parametrize("value", ["0.5", "-0.5", "3", "-3", "1E+3", "-1E-7"])
def test_decimals_have_as_many_tokens_as_rabbitmq_counts(value: str) -> None:
    said = compare(Term("a.n"), "=", decimal(Decimal(value)))
    assert said.tokens == len(tokens_of(said.text))


def in_list(count: int) -> object:
    """Return an IN of so many values."""
    return parse(f"properties.subject IN ({', '.join(repr(str(n)) for n in range(count))})")


def test_multiplying_out_stays_small() -> None:
    pairs = " AND ".join(f"(offset = 'a{n}' OR offset = 'b{n}')" for n in range(30))
    found = split_for_amqp(parse(pairs), EVENT_STREAMS)
    assert found.event_streams_sql is not None
    assert Parsed(found.event_streams_sql, flat=True).tree[0] == "or"
    assert found.event_streams_sql.count("d.event-streams-offset") <= 50
    assert left(found) is not None and left(found) in pairs


def test_of_an_and_within_an_or_a_part_is_enough() -> None:
    expression = parse("(offset > 'a' AND type = 'x') OR offset = 'b'")
    target = EventStreams()
    found = split(expression, target)
    assert found.residual == expression
    assert found.pushed == split(parse("offset > 'a' OR offset = 'b'"), target).pushed is not None


REGION = property_of("application_properties.region")


@pytest.mark.parametrize(
    ("text", "values", "first", "remains"),
    [
        ("region = 'eu'", ("eu",), None, ALL),
        ("region IN ('eu', 'us', 'eu')", ("eu", "us"), None, ALL),
        ("application_properties.region = 'eu' OR region = 'us'", ("eu", "us"), None, ALL),
        ("region IN ('eu', 'us') AND region IN ('us', 'jp')", ("us",), None, ALL),
        ("region = 'eu' AND region = 'us'", ("eu",), None, ALL),
        ("region = 'eu' AND type = 'a'", ("eu",), None, ALL),
        ("region = 'eu' OR type = 'a'", None, None, ALL),
        ("region = ''", None, None, ALL),  # an empty value counts as none (Z-4)
        ("region = 5", None, None, ALL),  # a number has many texts
        ("region <> 'eu'", None, None, ALL),
        ("region IS NULL", None, None, ALL),  # unfiltered alone is no filter (Z-3)
        ("offset >= 5", None, 5, NONE),
        ("offset > 5 AND offset > 7.5", None, 8, NONE),
        ("offset >= 0", None, None, NONE),
        ("offset > '00000000000000000005'", None, 6, NONE),
        ("offset >= '00000000000000000005'", None, 5, NONE),
        ("offset > '5'", None, 50000000000000000000, NONE),
        ("offset = 5", None, 5, ALL),
        ("offset BETWEEN 5 AND 9", None, 5, ALL),
        ("offset IN ('00000000000000000009', '00000000000000000007')", None, 7, ALL),
        ("offset > 5 OR offset > 3", None, 4, NONE),
        ("offset < 5", None, None, ALL),
        ("offset < 5 OR offset > 9", None, None, ALL),
        ("offset <> 5", None, None, ALL),
        ("offset = 1.5", None, 2**63 - 1, NONE),
        ("offset <> '00000000000000000000'", None, 1, NONE),
        ("offset <> 'x'", None, None, NONE),
        ("offset < ''", None, 2**63 - 1, NONE),
        ("offset < '00000000000000000005'", None, None, ALL),
        ("region = 'eu' AND offset > 5", ("eu",), 6, "region = 'eu'"),
        ("publish_time > 5", None, None, ALL),  # the broker may jump over matching chunks
    ],
)  # fmt: skip
def test_rabbitmq_streams(text: str, values: tuple[str, ...] | None, first: int | None, remains: str | None) -> None:
    found = split_for_rabbitmq(parse(text), REGION)
    expected = None if first is None else min(first, 2**63 - 1)
    assert (found.values, found.first_offset) == (values, expected)
    assert (left(found) or NONE) == (to_text(parse(text)) if remains is ALL else remains)


def test_a_broker_without_filters_or_publishers_without_filter_values() -> None:
    expression = parse("region = 'eu' AND offset > 5")
    found = split_for_rabbitmq(expression, None)
    assert (found.values, found.first_offset, found.words) == (None, 6, "starting offset 6")
    found = split_for_rabbitmq(parse("key = 'k'"), KEY)
    assert (found.values, found.words) == (("k",), "filter values 'k'")


def test_filter_values_are_bounded() -> None:
    for count, pushed in ((128, True), (129, False)):
        values = ", ".join(f"'{n}'" for n in range(count))
        found = split_for_rabbitmq(parse(f"region IN ({values})"), REGION)
        assert (found.values is not None) is pushed


FIELDS: dict[str, Reference] = {"key": KEY, "subject": property_of("/data/subject")}


@pytest.mark.parametrize(
    ("text", "words", "remains"),
    [
        ("[/data/subject] = 'a b&c'", "filter-subject=a b&c", NONE),
        ("key = 'k' AND [/data/subject] IN ('s')", "filter-key=k; filter-subject=s", NONE),
        ("key = 'k' AND type = 'a'", "filter-key=k", "type = 'a'"),
        ("key = 'k' AND key = 'l'", "filter-key=k", "key = 'l'"),
        ("key = 'k' OR key = 'k'", "filter-key=k", NONE),
        ("key = 'k' OR key = 'l'", None, ALL),
        ("key IN ('k', 'l')", None, ALL),
        ("key = ''", None, ALL),
        ("key = 'a\nb'", None, ALL),
        ("key <> 'k'", None, ALL),
        ("key = 5", None, ALL),
        ("NOT key <> 'k'", "filter-key=k", NONE),
    ],
)
def test_feeds(text: str, words: str | None, remains: str | None) -> None:
    found = split_for_feed(parse(text), FIELDS)
    assert (found.words, left(found) or NONE) == (
        words,
        to_text(parse(text)) if remains is ALL else remains,
    )
