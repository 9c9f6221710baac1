"""How text of events is made fit to be shown: hidden characters, bytes that are text, JSON on lines."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.server.web.shown_text import MOST_LEVELS, json_layout, one_visible_line, text_of, visible

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)
JOINERS = "\u200c\u200d"


def test_no_control_format_or_surrogate_stays_hidden() -> None:
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    for code in [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFE00, 0x10000), *range(0xE0000, 0xE0200)]:
        if (
            unicodedata.category(chr(code)) in hidden
            and chr(code) not in "\t\n" + JOINERS
            and not 0x600 <= code < 0x910
        ):
            assert visible(chr(code)) == f"\u27e8U+{code:04X}\u27e9"
    assert (
        visible("caf\u00e9 \U0001f468\u200d\U0001f469 \u05d0\u0627")
        == "caf\u00e9 \U0001f468\u200d\U0001f469 \u05d0\u0627"
    )


def test_a_line_is_one_line_and_short() -> None:
    assert one_visible_line("a\nb\tc\rd") == "a\u21b5b\u21e5c\u27e8U+000D\u27e9d"
    assert one_visible_line("abc", 3) == "abc"
    assert one_visible_line("abcd", 3) == "abc\u2026"


@pytest.mark.parametrize(
    ("content", "cut", "expected"),
    [
        (b"", False, ""),
        ("\u00e4".encode(), False, "\u00e4"),
        (b"\xc3", False, None),
        (b"a\xc3", True, "a"),
        (b"a\xf0\x9f\x92", True, "a"),
        (b"\xff", True, ""),
        (b"\xed\xa0\x80x", False, None),
        (b"\x00\x01\x02abc", False, None),
        (b"one\x00" + b"." * 20, False, "one\x00" + "." * 20),
    ],
)
def test_bytes_are_text_or_not(content: bytes, cut: bool, expected: str | None) -> None:
    assert text_of(content, cut=cut) == expected


@given(JSON, st.sampled_from([None, 2]))
def test_json_means_the_same_on_lines(document: Any, indent: int | None) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    laid_out = json_layout(text)
    if not isinstance(document, (dict, list)):
        assert laid_out is None
    else:
        assert laid_out is not None
        assert json.loads(laid_out) == document
        assert laid_out == json.dumps(document, ensure_ascii=False, indent=2)


@given(JSON.filter(lambda each: isinstance(each, (dict, list)) and bool(each)), st.data())
def test_the_beginning_of_a_document_is_laid_out_too(document: Any, data: st.DataObject) -> None:
    text = json.dumps(document)
    beginning = text[: data.draw(st.integers(1, len(text)))]
    laid_out = json_layout(beginning, cut=True)
    assert laid_out is not None
    assert "".join(laid_out.split()) == "".join(beginning.split())


def test_json_keeps_what_values_would_lose() -> None:
    text = '{"b":1.50,"a":12345678901234567890.10e+400,"a":-0,"\\ud800":"\\u0041"}'
    assert json_layout(text) == (
        '{\n  "b": 1.50,\n  "a": 12345678901234567890.10e+400,\n  "a": -0,\n  "\\ud800": "\\u0041"\n}'
    )


@pytest.mark.parametrize("text", ["", "5", '"x"', "[1,]", "{a:1}", "[NaN]", "[1] x", "{'a':1}", "[" * 100_000])
def test_what_is_no_json_is_not_laid_out(text: str) -> None:
    assert json_layout(text) is None


def test_hostile_nesting_stays_small() -> None:
    laid_out = json_layout("[" * 65_536, cut=True)
    assert laid_out is not None
    assert laid_out.count("\n") <= MOST_LEVELS
    assert len(laid_out) < 70_000
