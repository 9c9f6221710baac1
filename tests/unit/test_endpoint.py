"""Urls, and secrets that never show."""

from __future__ import annotations

import pickle

import pytest

from spark_streams.endpoint import Endpoint, Secret, Tls, parse_url, redact_url
from spark_streams.errors import OptionError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://broker", Endpoint("amqp", "broker", 5672)),
        ("AMQP://broker:1234/", Endpoint("amqp", "broker", 1234)),
        ("amqps://broker", Endpoint("amqps", "broker", 5671, tls=Tls())),
        ("amqp://[::1]:77", Endpoint("amqp", "::1", 77)),
        ("amqp://[fe80::1]", Endpoint("amqp", "fe80::1", 5672)),
        ("amqp://me:pw@broker", Endpoint("amqp", "broker", 5672, "me", Secret("pw"))),
        ("amqp://a%40b:p%2Fw%3a@broker", Endpoint("amqp", "broker", 5672, "a@b", Secret("p/w:"))),
        ("amqp://me:p@w@broker", Endpoint("amqp", "broker", 5672, "me", Secret("p@w"))),
        ("amqp://me@broker", Endpoint("amqp", "broker", 5672, "me")),
    ],
)
def test_urls(url: str, expected: Endpoint) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("broker:5672", "no scheme where one of 'amqp' or 'amqps' was expected"),
        ("http://broker", "scheme 'http'"),
        ("me:hunter2@broker", "no scheme"),
        ("amqp://", "names no host"),
        ("amqp:///orders", "names no host"),
        ("amqp://me:hunter2@broker:0", "port '0', expected a number from 1 to 65535"),
        ("amqp://me:hunter2@broker:99999", "amqp://***@broker:99999 has port '99999'"),
        ("amqp://me:hunter2@broker:port", "port 'port'"),
        ("amqp://me:hunter2@broker/orders", "the stream goes into option 'stream'"),
        ("amqp://me:hunter2/x@broker", "percent-encoded"),
        ("amqp://me:hunter2/x@broker/y", "path"),
        ("amqp://[::1:5672", "IPv6"),
        ("amqp://[broker]", "IPv6"),
        ("amqp://bro ker", "blank"),
    ],
)
def test_bad_urls_say_what_is_wrong_and_no_password(url: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_url(url)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "option 'url'" in str(caught.value)


def test_a_secret_shows_nowhere() -> None:
    endpoint = parse_url("amqp://me:hunter2@broker")
    secret = endpoint.password
    assert secret is not None
    for shown in (
        repr(endpoint),
        str(endpoint),
        f"{endpoint}",
        f"{secret}",
        f"{secret:>9}",
        repr([secret]),
    ):
        assert "hunter2" not in shown
    frozen = pickle.dumps(endpoint)
    assert b"hunter2" not in frozen
    assert pickle.loads(frozen) == endpoint
    assert secret.reveal() == "hunter2"
    assert secret != Secret("hunter3")


def test_redact_url_hides_up_to_the_last_at_sign() -> None:
    assert redact_url("amqp://me:hun/ter@2@broker:1") == "amqp://***@broker:1"
    assert redact_url("amqp://broker") == "amqp://broker"
