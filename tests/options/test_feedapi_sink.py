"""The options of a feed's writer."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from spark_streams.errors import OptionError
from spark_streams.options.feedapi import parse_sink, validate


def test_a_door() -> None:
    options = parse_sink(
        {"url": "https://log:8443/team/orders", "token": "abc", "keyField": "/id", "requestTimeout": "5", "path": ""}
    )
    assert options.data_dir is None and options.endpoint is not None
    assert (options.endpoint.host, options.endpoint.port, options.endpoint.path) == ("log", 8443, "/team/orders")
    assert (options.stream, options.key_field, options.request_timeout_ms) == ("orders", "/id", 5)
    assert "abc" not in repr(options) and b"abc" not in pickle.dumps(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.endpoint.token is not None and options.endpoint.token.reveal() == "abc"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/var/lib/log", "/var/lib/log"),
        (" /var/lib/log/ ", "/var/lib/log"),
        ("file:///var/lib/my%20log", "/var/lib/my log"),
        ("file:/var/lib/log", "/var/lib/log"),
        ("file://localhost/var/lib/log", "/var/lib/log"),
        ("data", os.path.abspath("data")),
    ],
)
def test_a_data_directory(url: str, expected: str) -> None:
    options = parse_sink({"url": url, "stream": " orders "})
    assert options.data_dir == expected and options.endpoint is None and options.stream == "orders"
    validate({"url": url, "stream": "orders"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "'url': is required: a feed's own address, such as http://localhost:8080/orders, or the data directory"),
        ({"url": " "}, "'url': is required"),
        ({"url": "http://log:8080"}, "'url': http://log:8080 names no feed, expected such as http://log:8080/orders"),
        ({"url": "http://log:8080/"}, "'url': http://log:8080/ names no feed"),
        ({"url": "ftp://log/orders"}, "'url': scheme 'ftp' where one of 'http' or 'https' was expected"),
        ({"url": "amqp://u:secret@log/orders"}, "'url': scheme 'amqp'"),
        ({"url": "file://server/log", "stream": "a"}, "'url': 'file://server/log' is not on this machine"),
        ({"url": "/log"}, "'stream': is required: the name of the stream, as 'url' is the data directory of a log"),
        ({"url": "/log", "stream": "a", "token": "t"}, "'token': is for http addresses, and 'url' is a data directory"),
        ({"url": "/log", "stream": "a", "tls.caFile": "x"}, "'tls.caFile': is for http addresses"),
        ({"url": "http://log/a", "token": "t", "username": "u", "password": "p"}, "'token': cannot be used together"),
        ({"url": "http://log/a", "dialect": "v1"}, "'dialect': this is for reading"),
        ({"url": "http://log/a", "startingOffsets": "latest"}, "'startingOffsets': this is for reading"),
        ({"url": "http://log/a", "filter-key": "x"}, "'filter-key': this is for reading"),
        ({"url": "http://log/a", "keyField": "id"}, "'keyField': 'id' is no JSON pointer"),
        ({"url": "http://log/a", "path": "a"}, "'path': load and save take no argument"),
        ({"url": "http://log/a", "keyfeild": "/id"}, "did you mean 'keyField'"),
    ],
)
def test_what_cannot_be_used(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_sink(given)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_directory_is_nothing_to_read_from(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'url'"):
        validate({"url": str(tmp_path), "stream": "orders"}, reading=True)
    with pytest.raises(OptionError, match="no such option"):
        validate({"url": str(tmp_path), "nonsense": "x"})
    with pytest.raises(OptionError, match="scheme 'ftp'"):
        validate({"url": "ftp://log/orders"})
