"""JSON as RFC 8259 defines it: what is only checked, as what is read."""

from __future__ import annotations

import json
from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from spark_streams.wire.feed.strict_json import check_json, load_exact


@st.composite
def nearly_json(draw: st.DrawFn) -> str:
    """JSON, or what is left of it when a piece is cut out, or put elsewhere."""
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    tree = st.recursive(leaf, lambda e: st.lists(e, max_size=3) | st.dictionaries(st.text(max_size=3), e, max_size=3))
    text = json.dumps(draw(tree), indent=draw(st.sampled_from([None, 1])), ensure_ascii=draw(st.booleans()))
    start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return draw(st.sampled_from([text, text[:start] + text[end:], text[:end] + text[start:]]))


@given(nearly_json() | st.text(alphabet='[]{},:"0-1.eE+ \t\n\r\\utrue\x00\xa0', max_size=12))
@example("[1 2]").via("no comma")
@example('{"a":1,}').via("nothing behind a comma")
@example('["a":1]').via("a name in an array")
@example("01").via("a zero in front")
@example('"\\\\ud800 \\ud83d"').via("half of a pair, and what looks like one")
@example("NaN").via("no number of JSON")
@example("[1]\xa0").via("a blank that is none of JSON's")
def test_a_text_is_checked_as_it_is_read(text: str) -> None:
    def is_json(check: Callable[[str], object]) -> bool:
        try:
            check(text)
        except ValueError:
            return False
        return True

    assert is_json(check_json) == is_json(load_exact)
