"""How commands sign in: TLS with client certificates, and secrets that no list of processes and no output shows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import Result

from spark_streams.cli.credentials import PeerOptions, tokens_of, users_of
from spark_streams.cli.log.config_file import read_configuration
from spark_streams.errors import OptionError
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, BearerToken, FeedConfig, Permissions, RabbitConfig, ServerThread
from tests.certificate_authority import Authority
from tests.cli.conftest import Ran, Served
from tests.cli.peers import opened
from tests.client.feed.scripted import BadFeed, Part, numbered

DOORS = ("amqp", "rabbitmq-stream", "feedapi")
PASSWORD, TOKEN = "geheim-passwort", "geheim-token"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def doors(tmp_path: Path, authority: Authority) -> Iterator[dict[str, str]]:
    """Three doors that want a certificate, and a password or a token; streams ``orders``, with an event, and copies."""
    certificate, key = authority.issue("server")
    tls = {"tls_cert": certificate, "tls_key": key, "tls_client_ca": str(authority.file), "tls_client_required": True}
    users: dict[str, Any] = {"users": {"ann": PASSWORD}, "permissions": {"*": Permissions("", "", "")}}
    users["permissions"]["ann"] = Permissions()
    with ReferenceLog(tmp_path / "log") as log:
        for name in ("orders", *DOORS):
            log.create_stream(name, 1)
        with ServerThread(
            log,
            AmqpConfig(port=0, **tls, **users),
            rabbit=RabbitConfig(port=0, authentication_delay_ms=0, **tls, **users),
            feed=FeedConfig(port=0, tokens=(TOKEN,), **tls),
        ) as server:
            where = (f"{server.urls['feedapi']}/orders", str(authority.file), authority.issue("writer"))
            answer = requests.post(
                where[0],
                data=b'{"event": {"n": 1}}\n',
                headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-ndjson"},
                verify=where[1],
                cert=where[2],
                timeout=120,
            )
            assert answer.status_code == 200, answer.text
            yield server.urls


def peer(doors: dict[str, str], door: str, stream: str = "orders", user: str = "ann@") -> str:
    url = doors[door]
    return f"{url}/{stream}" if door == "feedapi" else f"{url.replace('//', f'//{user}')}#{stream}"


def run(*words: str, **environment: str) -> Result:
    """Run a command; nothing that it prints holds a secret."""
    done = opened.run(*words, **environment)
    assert "geheim" not in done.output and "geheim" not in done.stderr
    return done


@pytest.fixture
def secret_files(tmp_path: Path) -> dict[str, str]:
    files = {"password": tmp_path / "password", "token": tmp_path / "token"}
    files["password"].write_text(f"{PASSWORD}\n")
    files["token"].write_text(f"{TOKEN}\n")
    return {name: str(path) for name, path in files.items()}


@pytest.fixture
def tls(authority: Authority) -> list[str]:
    certificate, key = authority.issue("ann")
    return ["--tls-ca", str(authority.file), "--tls-cert", certificate, "--tls-key", key]


@pytest.mark.parametrize("door", DOORS)
def test_every_way_to_sign_in(doors: dict[str, str], door: str, tls: list[str], secret_files: dict[str, str]) -> None:
    name, secret = ("token", TOKEN) if door == "feedapi" else ("password", PASSWORD)
    variable, url = f"SPARK_STREAMS_{name.upper()}", peer(doors, door)
    ways: list[tuple[list[str], dict[str, str]]] = [
        ([f"--{name}-file", secret_files[name]], {}),
        ([], {variable: secret}),
        ([], {f"{variable}_FILE": secret_files[name]}),
        ([f"--{name}-file", secret_files[name]], {variable: "not this one"}),
    ]
    for words, environment in ways:
        assert run("inspect", url, *tls, *words, **environment).exit_code == 0, (words, environment)
    read = ["tail", url, "--from", "earliest", "--no-follow", "--output", "value"]
    assert run(*read, *tls, *ways[0][0]).stdout == '{"n": 1}\n'
    if door != "feedapi":
        whole = {"SPARK_STREAMS_USERNAME": "ann", "SPARK_STREAMS_PASSWORD_FILE": secret_files["password"]}
        assert run("inspect", peer(doors, door, user=""), *tls, **whole).exit_code == 0
    wrong = run("inspect", url, *tls, **{variable: "geheim, but another"})
    assert (
        wrong.exit_code == 1
        and [line for line in wrong.stderr.splitlines() if " WARNING spark_streams.server: " not in line][1:] == []
    )
    if door == "amqp":  # the others try again for a while, as it might be a broker that starts
        without = run("inspect", url, *tls[:2], *ways[0][0])
        assert without.exit_code == 1 and "client certificate" in without.stderr


def test_a_certificate_alone_signs_in_where_it_may(doors: dict[str, str], tls: list[str]) -> None:
    for door in ("amqp", "rabbitmq-stream"):
        assert run("inspect", peer(doors, door, user=""), *tls).exit_code == 0, "its common name is ann"


@pytest.mark.parametrize(("source", "target"), [("amqp", "feedapi"), ("feedapi", "rabbitmq-stream")])
def test_copy_with_secrets_of_both_sides(
    doors: dict[str, str], source: str, target: str, tls: list[str], secret_files: dict[str, str]
) -> None:
    def kind(door: str) -> str:
        return "token" if door == "feedapi" else "password"

    words = ["copy", peer(doors, source), peer(doors, target, target), *tls]
    files = [f"--from-{kind(source)}-file", secret_files[kind(source)], f"--to-{kind(target)}-file"]
    done = run(*words, *files, secret_files[kind(target)])
    assert done.exit_code == 0 and "1 event copied" in done.stdout, done.stderr
    secrets = {"token": TOKEN, "password": PASSWORD}
    sides = {"FROM": kind(source), "TO": kind(target)}
    said = {f"SPARK_STREAMS_{side}_{each.upper()}": secrets[each] for side, each in sides.items()}
    general = {"SPARK_STREAMS_TOKEN": "not this one", "SPARK_STREAMS_PASSWORD": "nor this one"}
    assert run(*words, **said, **general).exit_code == 0


def test_copy_from_a_tls_peer_to_a_plain_one(
    doors: dict[str, str], tls: list[str], secret_files: dict[str, str], tmp_path: Path
) -> None:
    with ReferenceLog(tmp_path / "plain") as log:
        log.create_stream("copies", 1)
        with ServerThread(log, feed=FeedConfig(port=0)) as plain:
            target = f"{plain.urls['feedapi']}/copies"
            done = run("copy", peer(doors, "amqp"), target, *tls, "--from-password-file", secret_files["password"])
            assert done.exit_code == 0, done.stderr
            assert requests.get(f"{target}?partition=0&cursor=_first", timeout=120).text.count('{"n": 1}') == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["amqp://ann@h#s"], "user 'ann' has no password: expected --password-file FILE or SPARK_STREAMS_PASSWORD"),
        (["amqp://ann:geheim@h#s", "--password-file", "FILE"], "the url has a password already"),
        (["amqp://h#s", "--password-file", "FILE"], "needs a user, in the url"),
        (["http://h/s", "--token", "geheim", "--token-file", "FILE"], "cannot be used together with --token"),
        (["amqp://h#s", "--tls-key", "FILE"], "--tls-key needs --tls-cert beside it"),
        (["http://h/s", "--token-file", "nowhere"], "'nowhere' does not exist"),
    ],
)
def test_what_does_not_fit_together(words: list[str], said: str, secret_files: dict[str, str]) -> None:
    done = run("inspect", *(secret_files["token"] if word == "FILE" else word for word in words))
    assert done.exit_code == 2 and said in done.stderr, done.stderr


def test_an_empty_file_is_no_secret(doors: dict[str, str], tls: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for door, option in (("amqp", "--password-file"), ("feedapi", "--token-file")):
        done = run("inspect", peer(doors, door), *tls, option, str(tmp_path / "empty"))
        assert done.exit_code == 2 and "is empty, or no UTF-8: expected one line with the secret" in done.stderr


def test_what_is_said_at_debug_level_has_no_secret(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("geheim-token")
    with BadFeed({0: Part(numbered(0, 5))}) as feed:
        words = ("-vv", "tail", f"{feed.url}/orders?key=geheim-key", "--token-file", "token", "--from", "earliest")
        done = run(*words, "--no-follow", "--output", "value")
        assert {(asked["key"], asked.headers["Authorization"]) for asked in feed.asked} == {
            ("geheim-key", "Bearer geheim-token")
        }
    assert done.code == 0 and len(done.out.splitlines()) == 5 and "geheim" not in done.out + done.err


@pytest.mark.parametrize("door", ["amqp", "rabbitmq-stream"])
def test_passwords_are_not_said_at_debug_level(
    doors: dict[str, str], door: str, tls: list[str], secret_files: dict[str, str], run: Callable[..., Ran]
) -> None:
    """Also where signing in fails."""
    read = ("--from", "earliest", "--no-follow", "--output", "value", *tls)
    file = ("--password-file", secret_files["password"])
    for user, more in (("ann@", file), (f"ann:{PASSWORD}@", ())):
        done = run("-vv", "tail", peer(doors, door, user=user), *read, *more)
        assert (done.code, done.out) == (0, '{"n": 1}\n'), done.err
        assert "geheim" not in done.err
    done = run("-vv", "tail", peer(doors, door, user="ann:geheim-falsch@"), *read)
    assert (done.code, done.out) == (1, "")
    assert "Error: " in done.err and "geheim" not in done.err


def test_serve_takes_secrets_from_files(serve: Callable[..., Served], tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ann:geheim:eins\n\n# and\nbob: zwei \n")
    (tmp_path / "tokens").write_text("geheim-token\n")
    for name in ("users", "tokens"):
        (tmp_path / name).chmod(0o600)
    files = ("--user-file", "users", "--token-file", "tokens")
    served = serve("--stream", "orders", "--feedapi", "0", *files, "--user", "carl:drei")
    line = Path(f"/proc/{served.process.pid}/cmdline")
    if line.exists():  # there is no such file on macOS
        assert b"users" in line.read_bytes() and b"geheim" not in line.read_bytes()
    for user, code in (("ann:geheim:eins", 0), ("bob:%20zwei%20", 0), ("carl:drei", 0), ("guest:guest", 1)):
        url = served.doors["amqp"].replace("//", f"//{user}@")
        assert opened.run("inspect", url, "orders").exit_code == code, user
    feed = f"{served.doors['feedapi']}/orders"
    assert requests.get(feed, timeout=120).status_code == 401
    assert requests.get(feed, headers={"Authorization": "Bearer geheim-token"}, timeout=120).status_code == 200


def test_files_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content, read, said in (
        ("ann:x\ngeheim\n", users_of, "line 2: expected NAME:PASSWORD"),
        (":geheim\n", users_of, "line 1: expected NAME:PASSWORD"),
        ("geheim token\n", tokens_of, "line 1: a token is not printable ASCII"),
        ("# nothing\n\n", tokens_of, "is empty"),
    ):
        file.write_text(content)
        with pytest.raises(OptionError, match=said) as caught:
            read(file)
        assert "geheim" not in str(caught.value)
    file.write_bytes(b"\xff")
    with pytest.raises(OptionError, match="cannot be read: it is no UTF-8"):
        users_of(file)
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        tokens_of(tmp_path / "none")
    file.write_text("one\ntwo\n")
    assert tokens_of(file) == (BearerToken("one"), BearerToken("two"))


def test_files_that_others_can_read_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "log.toml"
    for content, secret in (
        ('[amqp.users]\nann = "geheim"\n', True),
        ('[feedapi.tokens.reader]\ntoken = "geheim"\n', True),
        ('[rabbitmq-stream.users]\nguest = "guest"\n', False),
        ("[log]\n", False),
    ):
        file.write_text(content)
        for mode in (0o644, 0o640, 0o600):
            file.chmod(mode)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                read_configuration(file)
            assert (f"chmod 600 {file}" in caplog.text) == (secret and mode != 0o600)
            assert "geheim" not in caplog.text


def test_a_commands_options_print_without_the_token() -> None:
    assert "hunter2" not in repr(PeerOptions(token="hunter2"))
