"""The page on security: its function gives a token, and its options and settings are there."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from docs.option_tables import PAGES
from spark_streams.options import parse_source
from spark_streams.options.feedapi import parse_feed_source
from tests.cli.pages import ROOT, blocks

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
    monkeypatch.setenv("FEED_TOKEN", "geheim-2")
    assert endpoint.token.reveal() == "geheim-1", "the function of the page remembers it"


def test_each_option_of_the_page_is_one() -> None:
    known = {name for page in PAGES for name in page.names}
    tables = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    told = set(re.findall(r"`((?:token|password)(?:File|Provider)?|tls\.\w+)`", "\n".join(tables)))
    assert told <= known
    assert {name for name in known if re.match(r"tls\.|token|password", name)} <= told


def test_host_names_are_checked_by_default() -> None:
    tls = parse_source({"url": "amqps://h", "stream": "s"}, streaming=True).endpoint.tls
    assert tls is not None and tls.verify_hostname
