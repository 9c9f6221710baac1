"""What peers say, without our secrets: every form, every place, and no ordinary words."""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_streams.endpoint import parse_url
from spark_streams.errors import ConnectionLost, DeliveryFailed, PositionLost, Refused, RemoteProtocolError
from spark_streams.redaction import MOST, REMEMBERED, SEARCHED, hidden, one_line, quoted, remember, safe_text
from tests.forgetting import forget_all
from tests.wire.work import work_of


def _basic(secret: str) -> str:
    return "Basic " + base64.b64encode(f"ann:{secret}".encode()).decode()


FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda s: s,
    "bearer": lambda s: f"Authorization: Bearer {s}",
    "url": lambda s: f"amqp://ann:{quote(s, safe='')}@host",
    "query": lambda s: f"?n=1&key={quote_plus(s)}&x",
    "lower hex": lambda s: "".join(f"%{each:02x}" for each in s.encode()),
    "partly encoded": lambda s: "".join(
        f"%{ord(c):02X}" if c.isascii() and i % 2 else quote(c) for i, c in enumerate(s)
    ),
    "basic": _basic,
    "basic in json": lambda s: json.dumps({"headers": {"Authorization": _basic(s)}}),
    "basic in a url": lambda s: quote(_basic(s), safe=""),
    "plain in base64": lambda s: base64.b64encode(f"\0ann\0{s}".encode()).decode(),
    "sasl": lambda s: f"\0ann\0{s}",
    "json": lambda s: json.dumps({"password": s}),
    "json of unicode": lambda s: json.dumps({"password": s}, ensure_ascii=False),
    "python": lambda s: repr({"password": s}),
    "bytes": lambda s: repr(s.encode()),
    "bytes taken for latin-1": lambda s: f"403 {s.encode().decode('latin-1')}",
}
SECRETS = st.text(st.characters(exclude_categories=("Cs",)), min_size=8, max_size=40)


class TestEveryForm:
    @pytest.mark.parametrize("form", FORMS)
    @given(secret=SECRETS, before=st.text(string.ascii_letters + " :=", max_size=5))
    @example(secret='p"ass\\wörd/+=&?', before="")
    @example(secret="a+b c/d=e%20f", before="x")
    def test_is_found(self, form: str, secret: str, before: str) -> None:
        forget_all()
        remember(secret, "ann")
        said = FORMS[form](secret)
        for text in (said, f"{before} {said} and more"):
            shown = hidden(text)
            assert "***" in shown
            for each in (secret, _basic(secret)[6:], quote(secret, safe="")):
                assert each not in shown

    @pytest.mark.parametrize("form", FORMS)
    @given(secret=st.text(string.ascii_letters + string.digits + "/+=_-", min_size=40, max_size=60), data=st.data())
    def test_a_cut_one_shows_less_than_a_dozen_characters(self, form: str, secret: str, data: st.DataObject) -> None:
        forget_all()
        remember(secret, "ann")
        said = FORMS[form](secret)
        shown = hidden(said[: data.draw(st.integers(0, len(said)))])
        for at in range(len(secret) - 12):
            assert secret[at : at + 13] not in shown

    @pytest.mark.parametrize("form", FORMS)
    def test_where_we_cut_nothing_is_left_of_one(self, form: str) -> None:
        secret = "geheim-" + "0123456789abcdef" * 4
        remember(secret, "ann")
        said = FORMS[form](secret)
        for start in range(0, len(said), 7):
            text = "x" * (SEARCHED - len(said) + start) + " " + said
            shown = hidden(text).replace("x", "")
            assert "gehe" not in shown and "Z2Vo" not in shown and "%67" not in shown, start

    @pytest.mark.parametrize("form", ["plain", "url", "plain in base64", "bytes"])
    def test_one_that_is_repeated_costs_no_more_than_its_length(self, form: str) -> None:
        """A peer that fills its answer with one must not cost a second for each kilobyte."""
        remember("geheim-password", "ann")
        said = FORMS[form]("geheim-password")
        assert hidden("got " + said * 500).count("***") == (500 if form in ("url", "bytes") else 1)
        half, whole = (said * count for count in (250, 500))
        assert work_of(lambda: hidden(whole)).steps < 3 * work_of(lambda: hidden(half)).steps

    def test_upper_case_is_found(self) -> None:
        remember("Geheim-Host-7")
        assert hidden("no such host: geheim-host-7.example") == "no such host: ***.example"

    def test_all_that_were_sent_are_found(self) -> None:
        for number in range(REMEMBERED):
            remember(f"rotated-{number:05}-secret")
        assert hidden("rotated-00000-secret rotated-00999-secret") == "*** ***"
        remember("one-more-secret")
        assert hidden("one-more-secret rotated-00001-secret") == "*** ***"


class TestShortSecrets:
    def test_stand_alone(self) -> None:
        remember("test", "ann")
        assert hidden("the latest test of a tester, test=1: 'test'") == "the latest *** of a tester, ***=1: '***'"

    def test_below_four_characters_only_as_they_were_sent(self) -> None:
        remember("x")
        remember("b", "a")
        assert hidden("x marks a b, data:blob, Bearer xyz") == "x marks a b, data:blob, Bearer xyz"
        assert hidden("Authorization: Bearer x") == "Authorization: ***"
        assert hidden("user a:b") == "user ***"
        assert hidden(f"Basic {base64.b64encode(b'a:b').decode()}") == "Basic ***"

    def test_the_users_name_is_no_secret(self) -> None:
        remember("guest", "guest")
        remember("", "ann")
        assert hidden("user 'guest' can only connect via localhost") == "user 'guest' can only connect via localhost"

    @pytest.mark.parametrize("secret", ["test", "json", "admin", "s3cr3t", "changeme"])
    def test_leave_the_words_of_brokers_alone(self, secret: str) -> None:
        remember(secret, "ann")
        for words in (
            "NOT_FOUND - no exchange 'orders' in vhost '/latest'",
            "handshake error: partition count mismatch",
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN",
            "is no JSON object (character 1)",
        ):
            assert hidden(words) == words


class TestOneLine:
    def test_nothing_begins_another_line_or_moves_the_cursor(self) -> None:
        forged = "no\r\n2026-01-01 ERROR all is lost\x1b[2J\x00\u2028\u202e\x85end\ud800"
        line = one_line(forged)
        assert line == r"no\r\n2026-01-01 ERROR all is lost\x1b[2J\x00\u2028\u202e\x85end\ud800"
        assert len(line.splitlines()) == 1

    def test_words_of_any_script_stay(self) -> None:
        assert safe_text("Поток не найден: 注文 ✓ é") == "Поток не найден: 注文 ✓ é"

    def test_is_cut(self) -> None:
        assert safe_text("a" * 5_000) == "a" * MOST + "…"
        assert len(safe_text("\n" * 5_000)) == MOST + 1
        assert quoted(["b" * 5_000], 10) == "['bbbbbbbb…"


class TestErrors:
    FORGED = "down\n2026-01-01 ERROR forged geheim-password-7 " + base64.b64encode(b"ann:geheim-password-7").decode()

    def test_hold_none_and_are_one_line(self) -> None:
        remember("geheim-password-7", "ann")
        said = self.FORGED
        for fault in (
            Refused(said, said, "attach 'a\nb'"),
            RemoteProtocolError(f"localhost:1: {said}"),
            ConnectionLost("attach to 'a\nb'"),
            DeliveryFailed("rejected", said, said, "row 1 (key 'a\nb')", "orders"),
            PositionLost("orders", "0\n1", f"after '{said}'", said),
        ):
            for shown in (str(fault), str(fault.args), repr(fault)):
                assert "geheim-password" not in shown and "Z2VoZWlt" not in shown and "geheim" not in shown
                assert "\n" not in shown

    def test_of_peers_that_talk_much_are_cut(self) -> None:
        assert len(str(Refused("status 500", "x" * 100_000, "GET"))) < 5_000
        assert len(str(RemoteProtocolError("x" * 100_000))) < 5_000

    def test_pickle(self) -> None:
        import pickle

        remember("geheim-password-7", "ann")
        again = pickle.loads(pickle.dumps(Refused("c", self.FORGED, "attach")))
        assert b"geheim" not in pickle.dumps(again) and again.description.startswith("down\\n2026")


def test_a_url_is_no_place_for_a_secret_that_was_not_sent() -> None:
    endpoint = parse_url("amqp://ann:geheim-password-7@localhost")
    assert hidden("geheim-password-7") == "geheim-password-7", "what was never sent no peer can repeat"
    assert "geheim" not in f"{endpoint} {endpoint!r}"
