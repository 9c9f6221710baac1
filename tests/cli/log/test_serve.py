"""log serve: the line that it prints, its options, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import requests

from tests.cli.conftest import COMMAND, Ran, Served, served_here
from tests.real_rabbitmq.by_hand import CLOSE, Peer

Run = Callable[..., Ran]
Serve = Callable[..., Served]


def test_one_json_line_names_the_door_that_is_asked_for(serve: Serve) -> None:
    served = serve("--stream", "orders:3")
    assert list(served.doors) == ["amqp"]
    assert served.doors["amqp"].startswith("amqp://127.0.0.1:")
    assert served.stop() == 0
    assert served.process.stdout is not None and served.process.stdout.read() == ""


def test_all_three_doors_serve_one_log_to_those_of_the_command_line(serve: Serve, run: Run) -> None:
    users, tokens = ("--user", "ann:first", "--user", "bob:se:cond"), ("--token", "one", "--token", "two")
    served = serve("--rabbitmq-stream", "0", "--feedapi", "0", "--stream", "orders:2", *users, *tokens)
    assert list(served.doors) == ["amqp", "rabbitmq-stream", "feedapi"]
    for user, code in (("ann:first", 0), ("bob:se:cond", 0), ("guest:guest", 1)):
        url = served.doors["amqp"].replace("//", f"//{user}@")
        assert run("log", "append", url, "orders", '{"n": 1}', "--partition", "1").code == code
    with closing(Peer(served.doors["rabbitmq-stream"].replace("//", "//ann:first@"))) as peer:
        peer.password = "first"
        peer.open()
        assert peer.stats("orders-0")[1]["committed_offset"] == -1
        assert peer.stats("orders-1")[1]["committed_offset"] == 1
    feed = served.doors["feedapi"] + "/orders"
    for token, status in (("one", 200), ("two", 200), ("three", 401)):
        answer = requests.get(feed, headers={"Authorization": f"Bearer {token}"}, timeout=120)
        assert answer.status_code == status
    assert requests.get(feed, timeout=120).status_code == 401
    bearer = {"Authorization": "Bearer two"}
    assert [each["id"] for each in requests.get(feed, headers=bearer, timeout=120).json()["partitions"]] == ["0", "1"]
    page = requests.get(feed, params={"partition": "1", "cursor": "_first"}, headers=bearer, timeout=120)
    assert page.content.splitlines()[0] == b'{"event":{"n": 1}}'
    # A third of the start, and memory: nothing that the doors do brings it.
    assert "/pandas/" not in Path(f"/proc/{served.process.pid}/maps").read_text()
    assert served.stop() == 0


def test_the_rabbitmq_door_alone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "log", "serve", "--rabbitmq-stream", "0", "--user", "ann:se:cret"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    doors = json.loads(process.stdout.readline())
    assert list(doors) == ["rabbitmq-stream", "temporary"]
    with closing(Peer(doors["rabbitmq-stream"].replace("//", "//ann:se%3Acret@"))) as peer:
        peer.password = "se:cret"
        peer.open()
        process.terminate()
        assert peer.expect(CLOSE).code == 1
        assert process.wait(timeout=120) == 0


def test_a_user_signs_in_at_every_door_and_nobody_without(serve: Serve, run: Run) -> None:
    served = serve("--rabbitmq-stream", "0", "--feedapi", "0", "--stream", "good", "--user", "writer:secret")
    url = served.doors["amqp"].replace("//", "//writer:secret@")
    assert run("log", "append", url, "good", '{"n": 1}').code == 0
    feed = served.doors["feedapi"] + "/good"
    assert requests.delete(feed, timeout=120).status_code == 401
    assert requests.delete(feed, headers={"Authorization": "Bearer secret"}, timeout=120).status_code == 401
    assert requests.get(feed, auth=("writer", "secret"), timeout=120).status_code == 200
    listed = run("inspect", served.doors["feedapi"].replace("//", "//writer:secret@"))
    assert listed.code == 0 and "good" in listed.out
    assert requests.delete(feed, auth=("writer", "secret"), timeout=120).status_code == 204


@pytest.mark.parametrize(
    ("words", "door", "missing"),
    [
        (["--amqp", "0.0.0.0:0"], "amqp", "--user NAME:PASSWORD"),
        (["--amqp", "0.0.0.0:0", "--token", "secret"], "amqp", "--user NAME:PASSWORD"),
        (["--amqp", "0.0.0.0:0", "--user", "guest:guest"], "amqp", "--user NAME:PASSWORD"),
        (["--amqp", "0", "--rabbitmq-stream", "0.0.0.0:0", "--token", "s"], "rabbitmq-stream", "--user NAME:PASSWORD"),
        (["--amqp", "0", "--feedapi", "0.0.0.0:0"], "feedapi", "--token TOKEN or --user NAME:PASSWORD"),
        (["--amqp", "[::]:0", "--user", "a:b", "--config", "anonymous.toml"], "amqp", "allow_anonymous"),
    ],
)
def test_no_door_is_opened_to_strangers(run: Run, tmp_path: Path, words: list[str], door: str, missing: str) -> None:
    (tmp_path / "anonymous.toml").write_text("[amqp]\nallow_anonymous = true\n")
    done = run("log", "serve", "--data-dir", "kept", *words)
    assert done.code == 2 and done.out == "" and not (tmp_path / "kept").exists()
    assert f"--{door}" in done.err and "can be reached from other machines" in done.err
    assert missing in done.err and "--insecure" in done.err


def test_insecure_lets_in_guest_from_everywhere(serve: Serve, run: Run, tmp_path: Path) -> None:
    (tmp_path / "far.toml").write_text("[amqp]\nloopback = []\n")  # as if this machine were another
    far = serve("--config", "far.toml", "--stream", "orders")
    refused = run("log", "append", far.url, "orders", "x")
    assert refused.code == 1 and "guest" in refused.err
    insecure = serve("--config", "far.toml", "--stream", "orders", "--insecure")
    assert run("log", "append", insecure.url, "orders", "x").code == 0


def test_insecure_doors_are_opened_with_a_warning_each_and_let_in_everybody(tmp_path: Path) -> None:
    every = ("--amqp", "0.0.0.0:0", "--rabbitmq-stream", "0.0.0.0:0", "--feedapi", "0.0.0.0:0", "--stream", "good")
    process = subprocess.Popen(
        [*COMMAND, "log", "serve", *every, "--insecure"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    try:
        doors = json.loads(process.stdout.readline())
        feed = doors["feedapi"].replace("0.0.0.0", "127.0.0.1") + "/good"
        assert requests.delete(feed, timeout=120).status_code == 204
    finally:
        process.terminate()
    _, said = process.communicate(timeout=120)
    warnings = [line.partition("INSECURE: ")[2] for line in said.splitlines() if "INSECURE: " in line]
    assert [line.split(" which ")[0].rpartition(":")[0] for line in warnings] == [
        f"the door {door} listens on 0.0.0.0" for door in doors if door != "temporary"
    ]
    assert all("strangers are let in" in line for line in warnings)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_and_temporary_data_goes(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMAND, "log", "serve", "--amqp", "0", "--stream", "orders"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["temporary"] is True
    assert process.stderr.readline().startswith(b"This log is temporary: ")
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(number)
    assert process.wait(timeout=120) == 0
    with process:
        assert process.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mode", "told"), [(0o750, False), (0o755, True), (0o701, True)])
def test_a_data_directory_that_others_may_read_is_told_of(
    run_process: Run, tmp_path: Path, mode: int, told: bool
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    served = run_process("log", "serve", "--amqp", "0", "--data-dir", folder, "--until-stdin-closes")
    assert served.code == 0
    text = f"Other users of this machine may read the events in {folder}: `chmod o-rwx {folder}` keeps them out.\n"
    assert served.err == (text if told else "")
    assert folder.stat().st_mode & 0o777 == mode


def test_kill_9_loses_nothing_that_was_acknowledged(serve: Serve, run: Run) -> None:
    served = serve("--data-dir", "kept", "--stream", "orders:2")
    assert run("log", "append", served.url, "orders", *map(str, range(50))).code == 0
    served.process.kill()
    served.process.wait(timeout=120)
    again = serve("--data-dir", "kept", "--stream", "orders:2")
    assert not again.temporary
    shown = run("tail", again.url, "orders", "--from", "earliest", "--no-follow", "--output", "value")
    assert sorted(map(int, shown.out.split())) == list(range(50))


def test_tls(serve: Serve, run: Run, tmp_path: Path) -> None:
    certificate(tmp_path)
    served = serve("--feedapi", "0", "--stream", "orders", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    assert served.doors["amqp"].startswith("amqps://")
    assert run("log", "append", served.url, "orders", "safe", "--tls-ca", "cert.pem").code == 0
    untrusted = run("inspect", served.url, "orders")
    assert untrusted.code == 1 and "certificate" in untrusted.err
    plain = run("inspect", served.url.replace("amqps:", "amqp:"), "orders")
    assert plain.code == 1 and "TLS" in plain.err
    assert served.doors["feedapi"].startswith("https://")
    feed = served.doors["feedapi"] + "/orders"
    assert requests.get(feed, verify=str(tmp_path / "cert.pem"), timeout=120).status_code == 200
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(feed, timeout=120)


def certificate(folder: Path) -> None:
    """Write cert.pem and key.pem of 127.0.0.1, signed by itself."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "log")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def test_a_port_that_is_taken(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, door in (
            (("--amqp", port), "amqp"),
            (("--amqp", "0", "--rabbitmq-stream", port), "rabbitmq-stream"),
            (("--amqp", "0", "--feedapi", port), "feedapi"),
        ):
            done = run("log", "serve", *words)
            assert done.code == 2 and f"cannot listen on 127.0.0.1:{port}" in done.err
            assert f"--{door} 0" in done.err


def test_a_data_directory_that_is_taken(run: Run, run_process: Run, tmp_path: Path) -> None:
    assert run("log", "create", "--data-dir", "kept", "orders").code == 0
    with served_here(tmp_path / "kept"):
        done = run_process("log", "serve", "--amqp", "0", "--data-dir", "kept")
    assert done.code == 1 and "open in another process" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--token", "hidden-word two"], "a token is not printable ASCII without spaces"),
        (["--feedapi", "localhost"], "is not [HOST:]PORT"),
        (["--rabbitmq-stream", "localhost"], "is not [HOST:]PORT"),
        (["--user", "hidden-word"], "expected NAME:PASSWORD"),
        (["--amqp", "localhost"], "is not [HOST:]PORT"),
        (["--amqp", "70000"], "is not [HOST:]PORT"),
        (["--stream", "orders:0"], "is not NAME[:PARTITIONS]"),
        (["--tls-cert", "log.toml"], "needed together"),
        (["--tls-cert", "log.toml", "--tls-key", "log.toml"], "log.toml"),
        (["--config", "nothing.toml"], "nothing.toml"),
        (["--sream", "orders"], "--stream"),
    ],
)
def test_wrong_words_are_usage_errors(run: Run, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "log.toml").write_text("")
    done = run("log", "serve", *words, *(() if "--amqp" in words else ("--amqp", "0")))
    assert done.code == 2 and said in done.err
    assert "Traceback" not in done.err and "hidden-word" not in done.err and done.out == ""


def test_the_help_names_every_command_and_exit_code(run: Run) -> None:
    top = run("--help").out
    for words in ("log", "demo", "Examples:", "Exit codes:", "130"):
        assert words in top
    group = run("log", "--help").out
    for command in ("serve", "create", "split", "append", "delete"):
        assert f"\n  {command} " in group
        shown = run("log", command, "--help")
        assert shown.code == 0 and "Example" in shown.out


def test_one_stream_with_other_settings_comes_from_the_file(serve: Serve, run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'data_dir = "kept"\n[amqp]\nport = 0\n[[streams]]\nname = "old"\npartitions = 2\ntimestamp_type = "create"\n'
    )
    process = subprocess.Popen(
        [*COMMAND, "log", "serve", "--config", "mine.toml"], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None and "amqp" in json.loads(process.stdout.readline())
    process.terminate()
    assert process.wait(timeout=120) == 0
    said = json.loads(run("inspect", "--data-dir", "kept", "--json").out)
    assert (said["stream"], len(said["partitions"]), said["config"]["timestamp_type"]) == ("old", 2, "create")
