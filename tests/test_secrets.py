"""Secrets from a file or a callable: read anew each time, shown nowhere, and the options that say so."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_streams import secrets
from spark_streams.endpoint import Secret
from spark_streams.errors import OptionError
from spark_streams.options.amqp_events import parse_sink as parse_sink_options
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.feedapi import parse_sink as parse_feed_sink
from spark_streams.options.feedapi import parse_source as parse_feed_source
from spark_streams.options.rabbitmq_stream import parse_sink as parse_rabbit_sink
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.secrets import MAX_BYTES, CalledSecret, FileSecret

HERE = __name__
calls = 0


def counted() -> str:
    """Give another secret each time."""
    global calls
    calls += 1
    return f"geheim-{calls}\n"


def failing() -> str:
    """Fail with a secret in its words."""
    raise RuntimeError("cannot log in with geheim-9")


def empty() -> str:
    """Give nothing."""
    return " \n"


def nothing() -> None:
    """Give no text."""


not_callable = "geheim-9"

PARSERS: dict[str, tuple[Callable[[Mapping[str, str]], Any], dict[str, str]]] = {
    "amqp source": (lambda o: parse_source(o, streaming=True), {"url": "amqp://h", "stream": "s"}),
    "amqp sink": (parse_sink_options, {"url": "amqp://h"}),
    "rabbit source": (lambda o: parse_rabbit_source(o, streaming=True), {"url": "rabbitmq-stream://h", "stream": "s"}),
    "rabbit sink": (parse_rabbit_sink, {"url": "rabbitmq-stream://h", "stream": "s"}),
    "feed source": (lambda o: parse_feed_source(o, streaming=True), {"url": "http://h/x"}),
    "feed sink": (parse_feed_sink, {"url": "http://h/x"}),
}
FEEDS = ("feed source", "feed sink")
TOKENS = ("amqp source", "amqp sink", *FEEDS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text("geheim-1\n")
    return path


def test_a_file_is_read_each_time(file: Path) -> None:
    secret = FileSecret(str(file), "tokenFile")
    assert secret.reveal() == "geheim-1"
    new = file.with_name("new")
    new.write_text("  geheim-22 ")
    new.replace(file)
    assert secret.reveal() == "geheim-22"


@pytest.mark.parametrize("content", [b"geheim-1", b"geheim-1\n", b" geheim-1\r\n\r\n", b"\xef\xbb\xbfgeheim-1\r\n"])
def test_what_editors_put_around_it_is_dropped(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert FileSecret(str(file), "tokenFile").reveal() == "geheim-1"


def test_a_callable_is_called_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_TRIED", {f"{HERE}:counted"})
    secret = CalledSecret(f"{HERE}:counted", "tokenProvider")
    first = secret.reveal()
    assert first.startswith("geheim-") and first.strip() == first
    assert secret.reveal() != first


class Vault:
    """What a function may belong to."""

    @staticmethod
    def secret() -> str:
        """Give a secret."""
        return "geheim-3"


def test_a_callable_may_belong_to_a_class() -> None:
    assert CalledSecret(f"{HERE}:Vault.secret", "tokenProvider").reveal() == "geheim-3"


def test_the_largest_file_is_taken(file: Path) -> None:
    file.write_bytes(b"x" * MAX_BYTES)
    assert FileSecret(str(file), "tokenFile").reveal() == "x" * MAX_BYTES


def test_what_can_be_no_path_is_an_error() -> None:
    secret = FileSecret("a\0b", "tokenFile")
    with pytest.raises(OptionError, match=r"option 'tokenFile': .*cannot be read here: no path"):
        secret.reveal()


def test_only_where_it_comes_from_is_pickled_and_shown(file: Path) -> None:
    for secret in (FileSecret(str(file), "tokenFile"), CalledSecret(f"{HERE}:counted", "tokenProvider")):
        secret.reveal()
        pickled = pickle.dumps(secret)
        assert b"geheim" not in pickled and pickle.loads(pickled) == secret
        assert hash(pickle.loads(pickled)) == hash(secret) and type(pickle.loads(pickled)) is type(secret)
        assert "geheim" not in repr(secret) and secret.source in repr(secret) and str(secret) == f"{secret}" == "***"
        assert secret != Secret("geheim-1") and Secret("") != secret
        assert hash(secret) != hash(FileSecret("another", "tokenFile"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty, or no UTF-8"),
        (b"\n \n", "is empty, or no UTF-8"),
        (b"geheim\xff", "is empty, or no UTF-8"),
        (b"x" * (MAX_BYTES + 1), f"has more than {MAX_BYTES} bytes"),
        (b"geheim" * MAX_BYTES, f"has more than {MAX_BYTES} bytes"),
        (None, "cannot be read here: No such file"),
    ],
)
def test_a_file_without_a_secret_is_an_error(file: Path, content: bytes | None, said: str) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(OptionError, match="option 'tokenFile': ") as caught:
        FileSecret(str(file), "tokenFile").reveal()
    assert said in str(caught.value) and "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("no.such.module:function", r"cannot be imported here \(ModuleNotFoundError\)"),
        (f"{HERE}:no_function", r"cannot be imported here \(AttributeError\)"),
        (f"{HERE}:failing", "raised RuntimeError; what it said is not shown"),
        (f"{HERE}:empty", "returned an empty text"),
        (f"{HERE}:nothing", "returned a NoneType, expected a text"),
        (f"{HERE}:not_callable", "is a str, expected a function"),
    ],
)
def test_a_callable_without_a_secret_is_an_error(source: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        CalledSecret(source, "tokenProvider").reveal()
    assert str(caught.value).startswith("option 'tokenProvider': ")
    assert "geheim" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__, "a traceback shows what it said"


@pytest.mark.parametrize("source", ["os.getcwd", "os:", ":f", "a b:c", "a:b()", "a..b:c", "a:b:c", "1a:b"])
def test_what_is_no_name_of_a_function(source: str) -> None:
    with pytest.raises(OptionError, match="is no function, expected such as"):
        CalledSecret(source, "tokenProvider")


@pytest.mark.parametrize("format", PARSERS)
def test_a_password_from_elsewhere(format: str, file: Path) -> None:
    parse, least = PARSERS[format]
    for option, source in (("passwordFile", str(file)), ("passwordProvider", f"{HERE}:counted")):
        read = parse({**least, "username": "ann", option: source})
        assert read.endpoint.username == "ann" and read.endpoint.password.reveal().startswith("geheim-")
        assert b"geheim" not in pickle.dumps(read) and "geheim" not in repr(read)


@pytest.mark.parametrize("format", TOKENS)
def test_a_token_from_elsewhere(format: str, file: Path) -> None:
    parse, least = PARSERS[format]
    for option, source in (("tokenFile", str(file)), ("tokenProvider", f"{HERE}:counted")):
        read = parse({**least, option: source})
        assert read.endpoint.token.reveal().startswith("geheim-") and read.endpoint.password is None


@pytest.mark.parametrize(
    ("format", "options", "said"),
    [
        (None, {"username": "u", "password": "p", "passwordFile": "FILE"}, "'passwordFile': cannot be used together"),
        (None, {"username": "u", "passwordFile": "FILE", "passwordProvider": "a:b"}, "'passwordProvider': cannot be"),
        (None, {"passwordFile": "FILE"}, "option 'passwordFile': needs 'username' beside it"),
        (None, {"username": "u", "passwordFile": "no/such"}, "option 'passwordFile': 'no/such' is not a file"),
        (None, {"username": "u", "passwordFile": " "}, "option 'passwordFile': is empty"),
        (None, {"username": "u", "passwordProvider": "getcwd"}, "option 'passwordProvider': 'getcwd' is no function"),
        (TOKENS, {"token": "t", "tokenFile": "FILE"}, "option 'tokenFile': cannot be used together with 'token'"),
        (TOKENS, {"tokenFile": "FILE", "tokenProvider": "a:b"}, "'tokenProvider': cannot be used together with 'token"),
        (
            TOKENS,
            {"username": "u", "password": "p", "tokenFile": "FILE"},
            "option 'tokenFile': cannot be used together",
        ),
        (TOKENS, {"tokenFile": "no/such"}, "option 'tokenFile': 'no/such' is not a file"),
        (TOKENS, {"tokenProvider": "getcwd"}, "option 'tokenProvider': 'getcwd' is no function"),
        (("rabbit source", "rabbit sink"), {"tokenFile": "FILE"}, "knows no tokens; use 'username' and 'passwordFile'"),
    ],
)
def test_exactly_one_way(format: tuple[str, ...] | None, options: dict[str, str], said: str, file: Path) -> None:
    for name in format or PARSERS:
        parse, least = PARSERS[name]
        given = {k: str(file) if v == "FILE" else v for k, v in options.items()}
        with pytest.raises(OptionError) as caught:
            parse({**least, **given})
        assert said in str(caught.value) and "geheim" not in str(caught.value)


def test_credentials_in_the_url_are_another_way(file: Path) -> None:
    with pytest.raises(OptionError, match="'passwordFile': cannot be used together with credentials in 'url'"):
        parse_source({"url": "amqp://u:p@h", "stream": "s", "passwordFile": str(file)}, streaming=True)


def test_a_data_directory_takes_none_of_them(tmp_path: Path, file: Path) -> None:
    for option in ("tokenFile", "passwordFile"):
        with pytest.raises(OptionError, match=f"'{option}': is for http addresses"):
            parse_feed_sink({"url": str(tmp_path), "stream": "s", option: str(file)})


# --- functions that do more than return


def ending() -> str:
    os._exit(0)


def leaving() -> str:
    sys.exit("geheim-9")


def cancelled() -> str:
    raise asyncio.CancelledError("geheim-9")


def forking() -> str:
    """Return twice; the copy says so before."""
    if not os.fork():
        Path(os.environ.get("COPIES", os.devnull)).write_text("copy")
    return "geheim-9"


def threading_() -> str:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return "geheim-9"


def starting() -> str:
    subprocess.Popen(["sleep", "60"])
    return "geheim-9"


def ending_by_chance() -> str:
    os._exit(1)


def reading() -> str:
    """Read what a command prints, as many do; it ends a little later than its output."""
    return os.popen("echo geheim-4; exec >&-; sleep 0.1").read()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="no copy of the process elsewhere")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        pytest.param("ending", "ended the process that called it", marks=LINUX),
        pytest.param("ending_by_chance", "ended the process that called it", marks=LINUX),
        ("leaving", "raised SystemExit"),
        ("cancelled", "raised CancelledError"),
        pytest.param("forking", "left a thread or a process", marks=LINUX),
        pytest.param("threading_", "left a thread or a process", marks=LINUX),
        pytest.param("starting", "left a thread or a process", marks=LINUX),
    ],
)
def test_what_ends_copies_or_outlives_the_call_is_an_error(function: str, words: str) -> None:
    threads = threading.active_count()
    with pytest.raises(OptionError, match=f"option 'tokenProvider': '{HERE}:{function}' {words}") as raised:
        CalledSecret(f"{HERE}:{function}", "tokenProvider").reveal()
    assert "geheim" not in str(raised.value) and threading.active_count() == threads


def test_a_module_that_ends_the_process_as_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ends_by_itself.py").write_text("raise SystemExit")
    with pytest.raises(OptionError, match=r"cannot be imported here \(SystemExit\)"):
        CalledSecret("ends_by_itself:token", "tokenProvider").reveal()


@LINUX
def test_a_copy_that_comes_back_goes_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once tried, a function is called here: a fork of it later returns in this process alone."""
    copies = tmp_path / "copies"
    monkeypatch.setenv("COPIES", str(copies))
    monkeypatch.setattr(secrets, "_TRIED", {f"{HERE}:forking"})
    assert CalledSecret(f"{HERE}:forking", "tokenProvider").reveal() == "geheim-9"
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == secrets._TWICE and copies.read_text() == "copy"


@LINUX
def test_it_is_tried_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_TRIED", set())
    forks: list[int] = []
    fork = os.fork

    def counted_fork() -> int:
        forks.append(fork())
        return forks[-1]

    monkeypatch.setattr(os, "fork", counted_fork)
    secret, before = CalledSecret(f"{HERE}:counted", "tokenProvider"), calls
    secret.reveal()
    secret.reveal()
    assert len(forks) == 1 and calls == before + 1, "the first text is the copy's, which counts for itself"


@LINUX
def test_one_that_waits_for_ever_in_the_copy_is_called_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a lock that another thread had when the process was copied."""
    monkeypatch.setattr(secrets, "_TRIED", set())
    monkeypatch.setattr(secrets, "_TRIAL_S", 1)
    assert CalledSecret(f"{HERE}:waiting_in_a_copy", "tokenProvider").reveal() == "geheim-3"


@LINUX
def test_a_signal_that_is_ignored_here_ends_the_trial_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        test_one_that_waits_for_ever_in_the_copy_is_called_all_the_same(monkeypatch)
    finally:
        signal.signal(signal.SIGALRM, before)


@LINUX
def test_what_a_command_prints_is_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python has no ``memfd_create``, too: those that are built for older systems."""
    monkeypatch.setattr(secrets, "_TRIED", set())
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert CalledSecret(f"{HERE}:reading", "tokenProvider").reveal() == "geheim-4"


here = os.getpid()


def waiting_in_a_copy() -> str:
    if os.getpid() != here:
        threading.Event().wait()
    return "geheim-3"
