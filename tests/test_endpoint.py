"""Urls, and secrets that never show."""

from __future__ import annotations

import pickle
import re

import pytest

from spark_streams.endpoint import (
    AMQP_SCHEMES,
    HTTP_SCHEMES,
    RABBITMQ_SCHEMES,
    Endpoint,
    Secret,
    Tls,
    parse_url,
    redact_url,
    with_tls_scheme,
)
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
    ("url", "hosts"),
    [
        ("amqp://me:pw@a,b:7,[::1],[fe80::2]:9/", ["a:5672", "b:7", "[::1]:5672", "[fe80::2]:9"]),
        ("amqps://me:pw@a,b", ["a:5671", "b:5671"]),
        ("amqp://me:pw@a,b,a:5672", ["a:5672", "b:5672"]),
        ("rabbitmq-stream://me:pw@a:1,b:2/v%2Fw", ["a:1", "b:2"]),
        ("rabbitmq-stream+tls://me:pw@a,b/v%2Fw", ["a:5551", "b:5551"]),
        ("rabbitmq-stream://me:pw@[::1]:1/v%2Fw", ["[::1]:1"]),
    ],
)
def test_lists_of_hosts(url: str, hosts: list[str]) -> None:
    endpoint = parse_url(url, schemes=AMQP_SCHEMES | RABBITMQ_SCHEMES)
    assert endpoint.address == ",".join(hosts)
    assert [each.address for each in endpoint.hosts] == hosts
    for each in endpoint.hosts:
        assert (each.username, each.password) == ("me", Secret("pw"))
        assert (each.tls, each.vhost) == (endpoint.tls, endpoint.vhost)
        assert each.hosts == (each,)
    again = parse_url(endpoint.url, schemes=AMQP_SCHEMES | RABBITMQ_SCHEMES)
    assert again == endpoint.with_credentials(None, None)
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint and "pw" not in str(endpoint)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("amqp://a,,b", "amqp://a,,b names no host, or none beside a comma"),
        ("amqp://a,", "none beside a comma"),
        ("amqp://,a", "none beside a comma"),
        ("amqp://a, b", "blank"),
        ("amqp://me:hunter2@a:1,b:x", "amqp://***@a:1,b:x has port 'x'"),
        ("amqp://me:hunter2@a,[::1", "IPv6"),
        ("amqp://me:hunter2@a,me:hunter2@b", "credentials stand once, before the first host"),
        ("rabbitmq-stream://me:hunter2@a:1/x,b:1/x", "has more than a virtual host"),
        ("http://me:hunter2@a,b/orders", "lists 2 hosts, and a feed has one address"),
    ],
)
def test_bad_lists_of_hosts(url: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_url(url, schemes=AMQP_SCHEMES | RABBITMQ_SCHEMES | HTTP_SCHEMES)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_feeds_path_may_have_commas() -> None:
    assert parse_url("http://a/orders,new?x=1,2", schemes=HTTP_SCHEMES).path == "/orders,new"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("broker:5672", "no scheme where one of 'amqp' or 'amqps' was expected"),
        ("http://broker", "such as amqp://user:password@localhost:5672; http:// is for format 'feedapi'"),
        ("me:hunter2@broker", "no scheme"),
        ("amqp://", "names no host"),
        ("amqp:///orders", "names no host"),
        ("amqp://me:hunter2@broker:0", "port '0', expected a number from 1 to 65535"),
        ("amqp://me:hunter2@broker:99999", "amqp://***@broker:99999 has port '99999'"),
        ("amqp://me:hunter2@broker:port", "port 'port'"),
        ("amqp://me:hunter2@broker/a/orders", "the stream goes into option 'stream'"),
        ("amqp://me:hunter2/x@broker", "percent-encoded"),
        ("amqp://me:hunter2/x@broker/y", "percent-encoded"),
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


@pytest.mark.parametrize(
    ("schemes", "example"),
    [
        (AMQP_SCHEMES, "amqp://user:password@localhost:5672"),
        (RABBITMQ_SCHEMES, "rabbitmq-stream://user:password@localhost:5552"),
        (HTTP_SCHEMES, "http://localhost:8080/orders"),
    ],
)
def test_examples_can_be_copied(schemes: frozenset[str], example: str) -> None:
    with pytest.raises(OptionError, match=f"such as {re.escape(example)}$"):
        parse_url("broker", schemes=schemes)
    parse_url(example, schemes=schemes)


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


@pytest.mark.parametrize("value", ["", "hunter2", "pässwörd", "\0", "\udc80 of a name with bytes that are no UTF-8"])
def test_a_secret_survives_a_pickle_which_does_not_show_it(value: str) -> None:
    frozen = pickle.dumps(Secret(value))
    assert pickle.loads(frozen) == Secret(value) and pickle.loads(frozen).reveal() == value
    assert len(value) < 2 or value.encode("utf-8", "surrogatepass") not in frozen


def test_secrets_are_the_same_when_what_they_hide_is() -> None:
    assert {Secret("a"), Secret("a"), Secret("b")} == {Secret("b"), Secret("a")}
    assert Secret("a") != "a" and hash(Secret("a")) == hash(Secret("a")) != hash(Secret("b"))


@pytest.mark.parametrize("url", ["http://h/a\nb", "https://h/a?x\ny", "http://me:hunter2@h/a b"])
def test_blanks_in_addresses_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="has a blank in it") as refused:
        parse_url(url, schemes=HTTP_SCHEMES)
    assert "hunter2" not in str(refused.value)


def test_redact_url_hides_up_to_the_last_at_sign() -> None:
    assert redact_url("amqp://me:hun/ter@2@broker:1") == "amqp://***@broker:1"
    assert redact_url("amqp://broker") == "amqp://broker"


def test_redact_url_hides_the_query() -> None:
    """A feed's query may be its key; an at sign in it is no end of credentials."""
    assert redact_url("https://feed/orders?key=geheim") == "https://feed/orders?***"
    assert redact_url("https://me:hunter@feed/orders?key=geheim") == "https://***@feed/orders?***"
    for url in ("https://me:hun?ter@feed/orders", "https://me:hun?ter@feed?a=b", "https://feed/orders?key=gehe@im"):
        assert redact_url(url) == "https://***"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rabbitmq-stream://h", Endpoint("rabbitmq-stream", "h", 5552)),
        ("RabbitMQ-Stream://h:1/", Endpoint("rabbitmq-stream", "h", 1)),
        ("rabbitmq-stream+tls://h", Endpoint("rabbitmq-stream+tls", "h", 5551, tls=Tls())),
        ("rabbitmq-stream://h/%2F", Endpoint("rabbitmq-stream", "h", 5552)),
        ("rabbitmq-stream://h/prod", Endpoint("rabbitmq-stream", "h", 5552, vhost="prod")),
        ("rabbitmq-stream://h/%2f%2Fa%20%C3%A9", Endpoint("rabbitmq-stream", "h", 5552, vhost="//a é")),
        (
            "rabbitmq-stream://u:p%2Fw@[::1]:7/v%40w",
            Endpoint("rabbitmq-stream", "::1", 7, "u", Secret("p/w"), vhost="v@w"),
        ),
    ],
)
def test_urls_of_rabbitmq(url: str, expected: Endpoint) -> None:
    assert parse_url(url, schemes=RABBITMQ_SCHEMES) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("amqp://h", "scheme 'amqp' where one of 'rabbitmq-stream' or 'rabbitmq-stream+tls' was expected"),
        ("rabbitmq-stream:///prod", "names no host"),
        ("rabbitmq-stream://me:hunter2@h//", "***@h// has more than a virtual host"),
        ("rabbitmq-stream://me:hunter2@h//prod", "more than a virtual host"),
        ("rabbitmq-stream://me:hunter2@h/a/b", "'/' is %2F"),
        ("rabbitmq-stream://me:hunter2@h/a/", "'/' is %2F"),
        ("rabbitmq-stream://h/a?heartbeat=5", "more than a virtual host"),
        ("rabbitmq-stream://h?heartbeat=5", "query"),
        ("rabbitmq-stream://h/%zz", "not percent-encoded UTF-8"),
        ("rabbitmq-stream://h/50%", "not percent-encoded UTF-8"),
        ("rabbitmq-stream://h/%ff", "not percent-encoded UTF-8"),
    ],
)
def test_bad_urls_of_rabbitmq(url: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_url(url, schemes=RABBITMQ_SCHEMES)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_schemes_of_amqp_are_the_default() -> None:
    with pytest.raises(OptionError, match="scheme 'rabbitmq-stream' where one of 'amqp' or 'amqps' was expected"):
        parse_url("rabbitmq-stream://h")


def test_a_virtual_host_is_shown_and_comes_back() -> None:
    endpoint = parse_url("rabbitmq-stream://u:hunter2@h/a%2Fb%20%3F", schemes=RABBITMQ_SCHEMES)
    assert str(endpoint) == endpoint.url == "rabbitmq-stream://h:5552/a%2Fb%20%3F"
    assert parse_url(endpoint.url, schemes=RABBITMQ_SCHEMES).vhost == endpoint.vhost == "a/b ?"
    assert parse_url("rabbitmq-stream://h/", schemes=RABBITMQ_SCHEMES).url == "rabbitmq-stream://h:5552"
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("AMQP://u:p@h", "amqps://u:p@h"),
        (" rabbitmq-stream://h:1/v ", "rabbitmq-stream+tls://h:1/v"),
        ("amqps://h", "amqps://h"),
        ("rabbitmq-stream+tls://h", "rabbitmq-stream+tls://h"),
        ("http://h/feed?x=1", "https://h/feed?x=1"),
        ("https://h", "https://h"),
        ("ftp://h", "ftp://h"),
        ("amqp:h", "amqp:h"),
    ],
)
def test_the_scheme_that_means_tls(url: str, expected: str) -> None:
    assert with_tls_scheme(url) == expected
