"""JSON as RFC 8259 defines it: a long text, which is checked in steps, as a short one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_streams.wire.feed import strict_json
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
@example("NaN").via("no number of JSON")
@example("[1]\xa0").via("a blank that is none of JSON's")
def test_a_long_text_is_json_where_a_short_one_is(text: str) -> None:
    def is_json(check: Callable[[str], object]) -> bool:
        try:
            check(text)
        except ValueError:
            return False
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "LITTLE_CHARACTERS", -1)
        in_steps = is_json(lambda each: list(check_json(each)))
    assert in_steps == is_json(load_exact)
