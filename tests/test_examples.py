"""tests/examples.py: a share of a property's examples by day, all of them at night."""

from __future__ import annotations

from pathlib import Path

import pytest

PROPERTIES = """
    from hypothesis import given, settings
    from hypothesis.strategies import integers
    from tests.examples import examples

    seen = {"many": [], "few": [], "as usual": []}

    @given(integers())
    @settings(max_examples=examples(320))
    def test_many(drawn):
        seen["many"].append(drawn)

    @given(integers())
    @settings(max_examples=examples(20))
    def test_few(drawn):
        seen["few"].append(drawn)

    @given(integers())
    def test_as_usual(drawn):
        seen["as usual"].append(drawn)

    def test_how_many():
        print({name: len(drawn) for name, drawn in seen.items()}, sum(map(hash, seen["many"])))
"""


def printed(pytester: pytest.Pytester, profile: str) -> str:
    run = pytester.runpytest_subprocess("-s", "-p", "tests.examples", f"--hypothesis-profile={profile}")
    run.assert_outcomes(passed=4)
    return next(line for line in run.outlines if "many" in line)


@pytest.mark.nightly
def test_all_at_night_and_by_day_a_share_always_the_same(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    pytester.makepyfile(PROPERTIES)
    night, day = printed(pytester, "default"), printed(pytester, "ci")
    assert "{'many': 320, 'few': 20, 'as usual': 100}" in night
    assert "{'many': 40, 'few': 20, 'as usual': 25}" in day
    assert printed(pytester, "ci") == day
    same = printed(pytester, "same")
    assert "{'many': 320, 'few': 20, 'as usual': 100}" in same
    assert printed(pytester, "same") == same
