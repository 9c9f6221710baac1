"""A filter in an option: text, or the protobuf form in base64."""

from __future__ import annotations

import base64

import pytest

from spark_streams.errors import FilterError
from spark_streams.filters import parse, read_filter, to_protobuf

IN_BASE64 = "CAASDAgAEgFrGAAiAXYoAA=="
"""Property k = "v", in base64."""


def test_both_notations_give_the_same_tree() -> None:
    assert base64.b64decode(IN_BASE64).hex() == "0800120c080012016b18002201762800"
    assert read_filter(IN_BASE64) == read_filter("k = 'v'") == parse("k = 'v'")


@pytest.mark.parametrize("written", [IN_BASE64.rstrip("="), f" {IN_BASE64}\n", IN_BASE64.replace("=", "", 1)])
def test_base64_may_lack_padding_and_have_blanks_around(written: str) -> None:
    assert read_filter(written) == parse("k = 'v'")


def test_both_alphabets_of_base64_are_read() -> None:
    encoded = to_protobuf(parse("k = '>>>???'"))
    standard, for_urls = base64.b64encode(encoded).decode(), base64.urlsafe_b64encode(encoded).decode()
    assert standard != for_urls
    assert read_filter(standard) == read_filter(for_urls) == parse("k = '>>>???'")


@pytest.mark.parametrize("text", ["a=1", "1=a", "[a]=1", "a<'x'", "NOT(a=1)", "a IS NULL"])
def test_the_shortest_of_texts_are_not_taken_for_base64(text: str) -> None:
    assert read_filter(text) == parse(text)


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "empty"),
        ("type", 5, "expected one of ="),
        ("type", 5, "nor is it the protobuf form in base64"),
        ("CATEGORY", 1, "as text, column 9: expected one of ="),
        ("a b", 3, "expected one of ="),
        ("a ==", 3, "expected one of ="),
        ("x-y", 1, "in base64"),
        (IN_BASE64[:-4], 1, "in base64: protobuf form: byte 3: field 2 takes 12 bytes, but its message has 11 more"),
        (IN_BASE64[:-3], 1, "in base64: base64 of 21 characters"),
        ("CAASBwgAEgFrGGM=", 1, "in base64: protobuf form: predicate.op: not known: 99"),
        ("A" * 1_000_000, 524_289, "nor is it the protobuf form"),
        ("A" * 2_000_000, 524_289, "longer than 524288 characters"),
        ("/" * 1_000_000, 1, "in base64"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_neither_is_refused(text: str, column: int, reason: str) -> None:
    with pytest.raises(FilterError) as fault:
        read_filter(text)
    assert reason in fault.value.reason
    assert fault.value.column == column
    assert fault.value.text == text
    assert len(str(fault.value)) < 1_000
