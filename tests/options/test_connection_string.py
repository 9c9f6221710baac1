"""Option ``connectionString``, and the way to the peer: what is read and what is refused; nothing secret is shown."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.endpoint import Endpoint, Tls
from spark_streams.errors import OptionError
from spark_streams.options.amqp_events import parse_sink, parse_source, validate
from spark_streams.options.connection_string import is_connection_string, parse_connection_string
from spark_streams.options.parser import RedactedOptions
from tests.examples import examples

ENDPOINT = "Endpoint=sb://ns.servicebus.windows.net/"
RULE = "SharedAccessKeyName=RootManageSharedAccessKey"
KEY = "SharedAccessKey=geheim+key/=="
SAS = (
    "SharedAccessSignature=SharedAccessSignature sr=sb%3A%2F%2Fns.servicebus.windows.net%2Forders&sig=geheim%3D"
    "&se=4102444800&skn=listen"
)
PORTAL = f"{ENDPOINT};{RULE};{KEY};EntityPath=orders"
"""As the portal shows the one of a hub."""


def read(text: str, **options: str) -> Any:
    return parse_source({"connectionString": text, **options}, streaming=True)


def where(text: str, **options: str) -> Endpoint:
    endpoint: Endpoint = read(text, stream="orders", **options).endpoint
    return endpoint


def test_the_one_of_a_hub() -> None:
    options = read(PORTAL)
    endpoint = options.endpoint
    assert (options.stream, endpoint.scheme, endpoint.host, endpoint.port) == (
        "orders", "amqps", "ns.servicebus.windows.net", 5671,
    )  # fmt: skip
    assert endpoint.username == "RootManageSharedAccessKey" and endpoint.password.reveal() == "geheim+key/=="
    assert (endpoint.token, endpoint.tls, endpoint.option) == (None, Tls(), "connectionString")
    assert parse_sink({"connectionString": PORTAL}).stream == "orders"
    validate({"connectionString": PORTAL}, reading=True)


def test_the_one_of_a_namespace_names_no_hub() -> None:
    text = f"{ENDPOINT};{RULE};{KEY}"
    assert read(text, stream=" orders ").stream == "orders"
    assert parse_sink({"connectionString": text}).stream is None
    with pytest.raises(OptionError, match="option 'stream': is required"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        f"HostName=orders.azure-devices.net;SharedAccessKeyName=iothubowner;{KEY}",
        f"hostname=orders.azure-devices.net;DeviceId=d;{KEY}",
    ],
)
def test_the_one_of_an_iot_hub(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        read(text, stream="orders")
    said = str(refused.value)
    assert "is that of an IoT Hub" in said and "Event Hub-compatible endpoint" in said and "Endpoint=sb://" in said
    assert "geheim" not in said and "azure-devices" not in said
    assert is_connection_string(text), "in the place of a url too"


def test_a_hub_is_named_once_or_twice_alike() -> None:
    assert read(PORTAL, stream="Orders").stream == "orders"
    with pytest.raises(OptionError, match="option 'stream': 'returns' is another hub than 'orders'"):
        read(PORTAL, stream="returns")


def test_the_hub_may_be_named_in_the_endpoint_too() -> None:
    """As azure-event-hubs-spark's documentation has it."""
    text = f"{ENDPOINT}orders;EntityPath=orders;{RULE};{KEY}"
    assert (read(text).stream, read(text).endpoint.host) == ("orders", "ns.servicebus.windows.net")
    for wrong in (text.replace("EntityPath=orders", "EntityPath=returns"), text.replace("EntityPath=orders;", "")):
        with pytest.raises(OptionError, match="the hub is EntityPath"):
            read(wrong, stream="orders")


def test_names_are_taken_in_any_case_and_order() -> None:
    text = f" entitypath = orders ;SHAREDACCESSKEY=geheim+key/==;;sharedaccesskeyname={RULE[20:]};endpoint=SB://h ; "
    endpoint = read(text).endpoint
    assert (endpoint.host, endpoint.username, endpoint.password.reveal()) == ("h", RULE[20:], "geheim+key/==")


def test_a_signature_is_a_token() -> None:
    endpoint = where(f"{ENDPOINT};{SAS}")
    assert endpoint.username is None and endpoint.token is not None
    assert endpoint.token.reveal() == SAS.partition("=")[2]


@pytest.mark.parametrize(
    ("address", "flag", "expected"),
    [
        ("sb://localhost", "true", ("amqp", "localhost", 5672)),
        ("sb://localhost:6789/", "TRUE", ("amqp", "localhost", 6789)),
        ("sb://[::1]:6789", "true", ("amqp", "::1", 6789)),
        ("sb://[::1]", "false", ("amqps", "::1", 5671)),
        ("sb://ns:6789", "false", ("amqps", "ns", 6789)),
    ],
)
def test_the_emulator_is_plain_amqp_on_its_port(address: str, flag: str, expected: tuple[str, str, int]) -> None:
    endpoint = where(f"Endpoint={address};{RULE};{KEY};UseDevelopmentEmulator={flag}")
    assert (endpoint.scheme, endpoint.host, endpoint.port) == expected
    assert (endpoint.tls is None) == (flag.lower() == "true")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" ", "has no Endpoint"),
        ("geheim", "part 1 is no name=value"),
        (f"{ENDPOINT};geheim==", "part 2 is no name=value"),
        (f"{ENDPOINT};{RULE};{KEY};geheim=x", "part 4 is no name=value"),
        (f"{ENDPOINT};{RULE};{KEY} EntityPath=geheim;EntityPath", "part 4 is no name=value"),
        (f"{RULE};{KEY}", "has no Endpoint"),
        (f"{ENDPOINT};{ENDPOINT};{RULE};{KEY}", "has Endpoint twice"),
        (f"Endpoint=;{RULE};{KEY}", "Endpoint is empty"),
        (f"Endpoint=https://geheim;{RULE};{KEY}", "Endpoint is no address"),
        (f"Endpoint=sb://;{RULE};{KEY}", "Endpoint is no address"),
        (f"Endpoint=sb://u:geheim@ns;{RULE};{KEY}", "Endpoint is no address"),
        (f"Endpoint=sb://ns/geheim;{RULE};{KEY}", "the hub is EntityPath"),
        (f"Endpoint=sb://ns,other;{RULE};{KEY}", "Endpoint is no address"),
        (f"Endpoint=sb://ns:port;{RULE};{KEY}", "Endpoint is no address"),
        (f"Endpoint=sb://ns:65536;{RULE};{KEY}", "has port '65536'"),
        (f"Endpoint=sb://[ns];{RULE};{KEY}", "no IPv6 address"),
        (f"{ENDPOINT};{RULE}", "has SharedAccessKeyName and no SharedAccessKey"),
        (f"{ENDPOINT};{KEY}", "has SharedAccessKey and no SharedAccessKeyName"),
        (f"{ENDPOINT};{RULE};{KEY};{SAS}", "has SharedAccessKey and SharedAccessSignature"),
        (f"{ENDPOINT};SharedAccessSignature=geheim", "is no 'SharedAccessSignature sr=…"),
        (f"{ENDPOINT};{SAS.replace('&se=', '&es=')}", "is no 'SharedAccessSignature sr=…"),
        (f"{ENDPOINT};{RULE};{KEY};UseDevelopmentEmulator=geheim", "is neither 'true' nor 'false'"),
        (f"{ENDPOINT};EntityPath=orders", "has neither SharedAccessKey nor SharedAccessSignature"),
    ],
)
def test_malformed(text: str, said: str) -> None:
    with pytest.raises(OptionError, match="option 'connectionString'") as caught:
        read(text, stream="orders")
    assert said in str(caught.value)
    assert "geheim" not in str(caught.value) and "geheim" not in repr(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from([ENDPOINT, RULE, KEY, SAS, "EntityPath=orders", "=", ";", "geheim", "sb://"])))
def test_no_message_shows_a_part(parts: list[str]) -> None:
    try:
        parse_connection_string(";".join(parts))
    except OptionError as fault:
        assert "geheim" not in str(fault)


@pytest.mark.parametrize(
    ("options", "option", "said"),
    [
        ({"url": "amqp://h"}, "connectionString", "cannot be used together with 'url'"),
        (
            {"username": "u", "password": "geheim"},
            "username",
            "cannot be used together with credentials in 'connection",
        ),
        ({"password": "geheim"}, "password", "cannot be used together with credentials in 'connectionString'"),
        ({"token": "geheim"}, "token", "cannot be used together with credentials in 'connectionString'"),
        ({"tokenProvider": "a:b"}, "tokenProvider", "cannot be used together with credentials in 'connectionString'"),
        ({"transport": "http"}, "transport", "neither 'tcp' nor 'websocket'"),
        ({"customEndpoint": " "}, "customEndpoint", "is empty"),
        ({"customEndpoint": "gw/path"}, "customEndpoint", "is no address"),
        ({"customEndpoint": "u:p@gw"}, "customEndpoint", "is no address"),
        ({"customEndpoint": "gw:99999"}, "customEndpoint", "is no address"),
        ({"customEndpoint": "a,b"}, "customEndpoint", "is no address"),
    ],
)
def test_conflicts(options: dict[str, str], option: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(PORTAL, **options)
    assert caught.value.option == option and said in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_without_a_key_other_options_say_who_signs_in(tmp_path: Path) -> None:
    bare = f"{ENDPOINT};EntityPath=orders"
    (tmp_path / "key").write_text("geheim\n")
    signed = where(bare, username="listen", passwordFile=str(tmp_path / "key"))
    assert (signed.username, signed.password and signed.password.reveal()) == ("listen", "geheim")
    held = where(bare, tokenProvider="my.vault:token")
    assert held.username is None and held.token is not None


def test_tls_options_and_the_emulator_contradict_each_other() -> None:
    assert where(PORTAL, **{"tls.verifyHostname": "false"}).tls == Tls(verify_hostname=False)
    with pytest.raises(OptionError, match=r"option 'tls.verifyHostname': cannot be used with UseDevelopmentEmulator"):
        read(f"{PORTAL};UseDevelopmentEmulator=true", **{"tls.verifyHostname": "true"})


def test_what_is_shown_and_pickled_of_it() -> None:
    given = RedactedOptions({"connectionString": PORTAL, "CONNECTIONSTRING": f"{ENDPOINT};{SAS}", "stream": "orders"})
    assert "geheim" not in repr(given) and "orders" in repr(given)
    assert b"geheim" not in pickle.dumps(given)
    assert dict(pickle.loads(pickle.dumps(given))) == dict(given)
    for text in (PORTAL, f"{ENDPOINT};{SAS};EntityPath=orders"):
        assert "geheim" not in repr(read(text)) and b"geheim" not in pickle.dumps(read(text))


def test_websockets_have_the_port_of_https() -> None:
    assert where(PORTAL, transport="WebSocket").port == 443
    assert where(PORTAL, transport="websocket").transport == "websocket"
    assert (where(PORTAL).port, where(PORTAL).transport) == (5671, "tcp")
    assert where(f"Endpoint=sb://h:8443;{RULE};{KEY}", transport="websocket").port == 8443
    assert where(f"{PORTAL};UseDevelopmentEmulator=true", transport="websocket").port == 5672
    several = parse_source({"url": "amqps://a,b:9", "stream": "s", "transport": "websocket"}, streaming=True).endpoint
    assert several.address == "a:443,b:9"


@pytest.mark.parametrize(
    ("written", "node"),
    [
        ("gw.example.com", ("gw.example.com", 5671)),
        ("sb://gw:8443/", ("gw", 8443)),
        ("[::1]:8443", ("::1", 8443)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
    ],
)
def test_a_gateway_is_another_way_to_the_same_host(written: str, node: tuple[str, int]) -> None:
    endpoint = where(PORTAL, customEndpoint=written)
    assert (endpoint.via, endpoint.host, endpoint.port) == (node, "ns.servicebus.windows.net", 5671)
    assert endpoint.url == "amqps://ns.servicebus.windows.net:5671"
    assert endpoint.address.startswith("ns.servicebus.windows.net:5671 via ")


def test_a_gateway_leads_to_one_host() -> None:
    with pytest.raises(OptionError, match="option 'customEndpoint': leads to one host"):
        parse_source({"url": "amqp://a,b", "stream": "s", "customEndpoint": "gw"}, streaming=True)


def test_a_gateway_of_websockets_has_their_port() -> None:
    assert where(PORTAL, transport="websocket", customEndpoint="gw").via == ("gw", 443)


def test_tokens_are_taken_where_there_is_no_password() -> None:
    options = parse_source({"url": "amqps://h", "stream": "s", "token": " geheim "}, streaming=True)
    assert options.endpoint.token is not None and options.endpoint.token.reveal() == "geheim"
    for url, others in (("amqps://u:p@h", {}), ("amqps://h", {"username": "u", "password": "p"})):
        with pytest.raises(OptionError, match="option 'token': cannot be used together"):
            parse_source({"url": url, "stream": "s", "token": "t", **others}, streaming=True)
