"""The page on security: its function gives a token, and its options and settings are there."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from click.testing import CliRunner

from docs.option_tables import PAGES
from spark_streams.cli import main
from spark_streams.cli.log.config_file import read_configuration
from spark_streams.log import LogConfig, ReferenceLog
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.feedapi import parse_source as parse_feed_source
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread, WebConfig
from spark_streams.server.users import permissions_of
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.certificate_authority import Authority
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "security.md"


def test_the_function_of_the_page_gives_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, program = blocks("docs/security.md", "python")
    monkeypatch.setenv("FEED_TOKEN", "geheim-1")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "company").mkdir()
    (tmp_path / "company" / "vault.py").write_text(module)
    spark = MagicMock()
    exec(compile(program, "page", "exec"), {"spark": spark})
    option = spark.readStream.format.return_value.option.call_args.args
    endpoint = parse_feed_source({"url": "http://h/x", option[0]: option[1]}, streaming=True).endpoint
    assert endpoint.token is not None and endpoint.token.reveal() == "geheim-1"
    assert endpoint.token.reveal() == "geheim-1", "this call is not in a copy of the process"
    monkeypatch.setenv("FEED_TOKEN", "geheim-2")
    assert endpoint.token.reveal() == "geheim-1", "the function of the page remembers it"


def test_each_option_of_the_page_is_one() -> None:
    known = {name for page in PAGES for name in page.names}
    tables = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    told = set(re.findall(r"`((?:token|password)(?:File|Provider)?|tls\.\w+)`", "\n".join(tables)))
    assert told <= known
    assert {name for name in known if re.match(r"tls\.|token|password", name)} <= told


def test_the_permissions_of_the_page(tmp_path: Path) -> None:
    (block,) = blocks("docs/security.md", "toml")
    (tmp_path / "log.toml").write_text(block)
    amqp = read_configuration(tmp_path / "log.toml").doors["amqp"]
    reader, other = permissions_of(amqp.permissions, "reader"), permissions_of(amqp.permissions, "somebody")
    assert reader is not None and reader.allow("read", "orders") and not reader.allow("write", "orders")
    assert other is not None and not any(other.allow(each, "orders") for each in ("configure", "write", "read"))


def test_the_command_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a log with the page's own permissions, whose certificate is this machine's; up to its end of now."""
    (block,) = blocks("docs/security.md", "bash")
    (settings,) = blocks("docs/security.md", "toml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reader.password").write_text("secret\n")
    (tmp_path / "log.toml").write_text(settings)
    permissions = read_configuration(tmp_path / "log.toml").doors["amqp"].permissions
    certificate, key = Authority(tmp_path, "ca").issue("log")
    with ReferenceLog(tmp_path / "log") as log:
        for stream in ("orders", "payroll"):
            event = encode_columns({"value": pa.array([stream.encode()])})
            log.create_stream(stream, 1).partitions["0"].append(event)
        users = {"reader": "secret", "ann": "secret"}
        door = AmqpConfig(port=0, tls_cert=certificate, tls_key=key, users=users, permissions=permissions)
        with ServerThread(log, door) as server:
            name, *words = shlex.split(block.replace("log.example.com", urlsplit(server.urls["amqp"]).netloc))
            assert name == "spark-streams"
            once = ("--from", "earliest", "--no-follow", "--output", "value")
            done = CliRunner().invoke(main, [*words, *once])
            assert (done.exit_code, done.stdout) == (0, "orders\n"), done.output
            for said, other in (("#orders", "#payroll"), ("//reader@", "//ann@")):
                refused = CliRunner().invoke(main, [*(word.replace(said, other) for word in words), *once])
                assert (refused.exit_code, refused.stdout) == (1, ""), other


def test_the_permissions_of_the_page_are_read(tmp_path: Path) -> None:
    (said,) = blocks("docs/security.md", "toml")
    (tmp_path / "log.toml").write_text(said)
    permissions = read_configuration(tmp_path / "log.toml").doors["amqp"].permissions
    reader, others = permissions_of(permissions, "reader"), permissions_of(permissions, "somebody")
    assert reader is not None and others is not None
    asked = [(action, stream) for action in ("configure", "write", "read") for stream in ("orders", "payroll")]
    assert [each for each in asked if reader.allow(*each)] == [("read", "orders")]
    assert not any(others.allow(*each) for each in asked)


def test_the_limits_of_the_page_have_the_defaults_of_the_code() -> None:
    """And every limit of time or number that all doors have is there."""
    doors = (AmqpConfig, RabbitConfig, FeedConfig, EventHubsConfig)
    kinds = (*doors, LogConfig)
    section = PAGE.read_text().split("## Hostile clients")[1].split("\n## ")[0]
    told = set()
    for line in section.splitlines():
        if not line.startswith("| ") or line.startswith("| attack"):
            continue
        _, _, setting, default = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`(\w+_\w+)`", setting):
            owners = {"`[log]`": (LogConfig,), "`[web]`": (WebConfig,)}.get(setting.rpartition(" ")[2], kinds)
            numbers = {getattr(kind(), name) for kind in owners if hasattr(kind(), name)}
            # One that follows from another setting has a word in the place of its number.
            defaults = {f"{each:,}" if each is not None else "seven eighths of it" for each in numbers}
            assert defaults and all(re.search(rf"(?<![\d,]){each}(?![\d,])", default) for each in defaults), line
            told.add(name)
    everywhere = set.intersection(*({field.name for field in dataclasses.fields(kind)} for kind in doors))
    assert {name for name in everywhere if name.startswith("max_") or name.endswith("_ms")} <= told


def test_host_names_are_checked_by_default() -> None:
    tls = parse_source({"url": "amqps://h", "stream": "s"}, streaming=True).endpoint.tls
    assert tls is not None and tls.verify_hostname
