"""What the command line says of an error: its own words, never those of Spark's options."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from spark_streams.cli.errors import in_words_of_the_command_line
from tests.cli.conftest import Ran
from tests.docs.pages import told

ITS_OWN = {
    *("loadBalancer", "singleActiveConsumer", "consumerName", "subEntrySize", "failOnDataLoss", "timestampOverflow"),
    *("maxLineBytes", "transport"),
}
"""Options whose errors only a query can meet: no command sets one."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("check the port in option 'url' and that the log runs", "check the port in URL and that the log runs"),
        ("option 'url': 'nix' has no scheme", "URL: 'nix' has no scheme"),
        ("option 'URL': names no stream", "URL: names no stream"),
        ("check option 'stream' or 'superStream'", "check the stream's name"),
        ("check options 'username' and 'password'", "check the user in URL and its password"),
        ("set option 'tls.verifyHostname' to 'false' if you trust it", "give --tls-any-host if you trust it"),
        ("else the peer hangs: raise option 'requestTimeout' if they are slow", "else the peer hangs"),
        ("option 'kafka.nix' stays", "option 'kafka.nix' stays"),
        ("option '--partitions': is for feeds", "option '--partitions': is for feeds"),
    ],
)
def test_options_become_arguments(text: str, said: str) -> None:
    assert in_words_of_the_command_line(text) == said


def test_no_message_of_a_client_names_an_option_of_sparks() -> None:
    texts = told("spark_streams/client", "spark_streams/wire")
    left = set(re.findall(r"options? '([\w.]+)'", in_words_of_the_command_line(texts)))
    assert left <= ITS_OWN


def test_a_port_where_nobody_is(run: Callable[..., Ran]) -> None:
    ran = run("tail", "rabbitmq-stream://guest:guest@127.0.0.1:1#orders", "--no-follow")
    assert ran.code == 1
    assert "check the port in URL" in ran.err and "option 'url'" not in ran.out + ran.err
