"""Bearer tokens (P-38), TLS, and what is answered to strangers."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from spark_streams.server import BearerToken, FeedConfig, Permissions
from tests.server.feed.conftest import Door

Doors = Callable[..., Door]


def ask(door: Door, token: str | None, method: str = "GET", path: str = "orders", **query: Any) -> requests.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return requests.request(method, f"{door.url}/{path}", params=query, headers=headers, timeout=120)


def test_p38_without_a_known_token_it_is_401(doors: Doors) -> None:
    door = doors(tokens=("first", "second"))
    door.create()
    for token in ("first", "second"):
        assert ask(door, token).status_code == 200
        assert ask(door, token, partition=0, cursor="_first").status_code == 200
    for token in (None, "third", "First", "firs", "first second", "", "é"):
        answer = requests.get(
            f"{door.url}/orders",
            headers={} if token is None else {"Authorization": f"Bearer {token}".encode()},  # type: ignore[dict-item]
            timeout=120,
        )
        assert answer.status_code == 401, token
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert "first" not in answer.text
    assert ask(door, None, partition=0, cursor="_first").status_code == 401
    assert ask(door, None, "POST").status_code == 401
    assert ask(door, None, "PUT", "new").status_code == 401


def test_p38_other_schemes_are_401(doors: Doors) -> None:
    door = doors(tokens=("first",))
    door.create()
    basic = base64.b64encode(b"guest:first").decode()
    for value in (f"Basic {basic}", "first", "Bearer", "Digest first"):
        assert requests.get(f"{door.url}/orders", headers={"Authorization": value}, timeout=120).status_code == 401
    assert requests.get(f"{door.url}/orders", headers={"Authorization": "bearer first"}, timeout=120).status_code == 200


def test_p38_a_token_that_may_not_is_403(doors: Doors) -> None:
    door = doors(
        tokens=(
            BearerToken("reader", configure="", write="", read="orders.*"),
            BearerToken("writer", configure="", write="orders", read=""),
            "everything",
        )
    )
    door.create()
    door.create("payments")
    event = b'{"event":{}}\n'
    post = {"Content-Type": "application/x-ndjson"}

    def publish(token: str, path: str = "orders") -> int:
        headers = {**post, "Authorization": f"Bearer {token}"}
        return requests.post(f"{door.url}/{path}", data=event, headers=headers, timeout=120).status_code

    assert ask(door, "reader").status_code == 200
    assert ask(door, "reader", path="payments").status_code == 403
    assert ask(door, "reader", path="payments", n=1, cursor0="_first").status_code == 403
    assert ask(door, "reader", path="nothing").status_code == 403, "nor is it told what there is"
    assert publish("reader") == 403
    assert ask(door, "reader", "PUT", "orders2").status_code == 403
    assert ask(door, "writer").status_code == 403
    assert publish("writer") == 200
    assert publish("writer", "payments") == 403
    assert ask(door, "everything", "PUT", "orders2").status_code == 201
    assert ask(door, "reader", "DELETE", "orders").status_code == 403
    assert ask(door, "everything", "DELETE", "orders2").status_code == 204
    assert ask(door, "reader", "POST", "orders/partitions/0/split").status_code == 403


def test_the_list_of_feeds_has_those_that_the_token_may_read(doors: Doors) -> None:
    door = doors(tokens=(BearerToken("reader", read="orders.*"), BearerToken("writer", read=""), "everything"))
    for name in ("payments", "orders", "orders2"):
        door.create(name)
    for token, feeds in (
        ("everything", ["orders", "orders2", "payments"]),
        ("reader", ["orders", "orders2"]),
        ("writer", []),
    ):
        answer = ask(door, token, path="")
        assert (answer.status_code, answer.json()) == (200, {"feeds": feeds})
    assert ask(door, None, path="").status_code == 401
    assert ask(door, "everything", path="", partition=0, cursor="_first").status_code == 404


def test_without_tokens_nobody_is_asked_for_one(door: Door) -> None:
    door.create()
    assert ask(door, None).status_code == 200
    assert ask(door, "whatever").status_code == 200


def basic(door: Door, user: str, password: str, method: str = "GET", path: str = "orders") -> requests.Response:
    given = base64.b64encode(f"{user}:{password}".encode()).decode()
    return requests.request(method, f"{door.url}/{path}", headers={"Authorization": f"Basic {given}"}, timeout=120)


def test_the_users_of_all_doors_sign_in_with_basic_authentication(doors: Doors) -> None:
    door = doors(users={"ann": "first: ß", "bob": ""}, tokens=("bearer",))
    door.create()
    assert basic(door, "ann", "first: ß").status_code == basic(door, "bob", "").status_code == 200
    assert ask(door, "bearer").status_code == 200
    for user, password in (("ann", "first"), ("ann", ""), ("carl", "first: ß"), ("", ""), ("guest", "guest")):
        answer = basic(door, user, password, "DELETE")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == (
            'Bearer realm="spark-streams", Basic realm="spark-streams", charset="UTF-8"'
        )
    colonless = base64.b64encode(b"ann").decode()
    for value in ("Basic", "Basic ?", f"Basic {colonless}", "Basic gA==", "Bearer ann", ""):
        answer = requests.delete(f"{door.url}/orders", headers={"Authorization": value}, timeout=120)
        assert answer.status_code == 401
    assert requests.delete(f"{door.url}/orders", timeout=120).status_code == 401
    assert basic(door, "ann", "first: ß", "DELETE").status_code == 204


def test_with_users_alone_no_token_lets_in(doors: Doors) -> None:
    door = doors(users={"ann": "first"})
    door.create()
    answer = ask(door, "first")
    assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic ")
    assert "user and its password" in answer.text and "bearer" not in answer.text


def test_a_user_does_what_its_permissions_say(doors: Doors) -> None:
    door = doors(
        users={"admin": "a", "reader": "r", "stranger": "s"},
        permissions={"reader": Permissions("", "", "orders.*"), "*": Permissions("", "", ""), "admin": Permissions()},
    )
    for name in ("orders", "orders-2", "payroll"):
        door.create(name)
    assert basic(door, "reader", "r").status_code == 200
    refused = basic(door, "reader", "r", path="payroll")
    assert (refused.status_code, refused.text) == (403, "user 'reader' may not read feed 'payroll'\n")
    assert basic(door, "reader", "r", "DELETE").status_code == 403
    assert basic(door, "reader", "r", "POST").status_code == 403
    for user, feeds in (("admin", ["orders", "orders-2", "payroll"]), ("reader", ["orders", "orders-2"])):
        assert basic(door, user, user[0], path="").json() == {"feeds": feeds}
    assert basic(door, "stranger", "s", path="").json() == {"feeds": []}
    assert basic(door, "admin", "a", "DELETE").status_code == 204


@pytest.mark.parametrize("partitions", [2, 65], ids=["few partitions", "made aside"])
def test_the_answer_to_a_change_has_settings_for_those_who_may_read(doors: Doors, partitions: int) -> None:
    door = doors(tokens=(BearerToken("maker", configure="orders.*", write="", read=""), "everything"))
    changes = [
        (status, method, path)
        for name in ("orders", "orders2")
        for status, method, path in (
            (201, "PUT", f"{name}?partitions={partitions}&retention_max_bytes=7000"),
            (200, "PUT", name),
            (200, "POST", f"{name}/partitions/0/split"),
        )
    ]
    for token, mine in (("maker", changes[:3]), ("everything", changes[3:])):
        for status, method, path in mine:
            answer = ask(door, token, method, path)
            assert answer.status_code == status, answer.text
            assert len(answer.json()["partitions"]) >= partitions
            assert ("settings" in answer.json()) == (token == "everything"), path
    assert ask(door, "everything").json()["settings"]["retention_max_bytes"] == 7_000


def test_where_nobody_is_asked_who_it_is_the_anonymous_user_counts(doors: Doors) -> None:
    door = doors(permissions={"anonymous": Permissions("", "", "orders")})
    door.create()
    assert ask(door, None).status_code == 200
    assert ask(door, None, "DELETE").status_code == 403


def test_guest_comes_from_loopback_alone(doors: Doors) -> None:
    users, elsewhere = {"guest": "guest", "ann": "first"}, frozenset({"192.0.2.0/24"})
    door = doors(users=users, loopback=elsewhere)
    door.create()
    assert basic(door, "ann", "first").status_code == 200
    refused = basic(door, "guest", "guest")
    assert refused.status_code == 401 and "from the door's own machine alone" in refused.text
    assert "own machine" not in basic(door, "guest", "wrong").text
    for folder, more in (("near", {}), ("insecure", {"loopback": elsewhere, "insecure": True})):
        other = doors(folder=folder, users=users, **more)
        other.create()
        assert basic(other, "guest", "guest").status_code == 200


def test_tokens_are_not_shown() -> None:
    config = FeedConfig(tokens=("hidden-word", BearerToken("hidden-word-2")))
    assert "hidden-word" not in repr(config) and "hidden-word" not in repr(config.bearers)
    with pytest.raises(ValueError, match="not shown") as raised:
        FeedConfig(tokens=("hidden word",))
    assert "hidden" not in str(raised.value)


def test_no_feed_takes_the_name_of_a_partition(doors: Doors) -> None:
    """Nor the other way round: over RabbitMQ's protocol it would have the partition's readers and writers."""
    door = doors(others=True)
    for first, second in ((("orders", 2), ("orders-0", 1)), (("payments-1", 1), ("payments", 2))):
        assert door.put(first[0], partitions=first[1]).status_code == 201
        refused = door.put(second[0], partitions=second[1])
        assert refused.status_code == 409 and "choose another name" in refused.text
        assert first[0] in refused.text and second[0] in refused.text
        assert door.get(second[0]).status_code == 404
    assert door.put("payments").status_code == 201
    for query in ({}, {"history": "true"}):
        refused = door.split(0, "payments", **query)
        assert refused.status_code == 409 and "stream 'payments-1' has that name" in refused.text
    assert [each["id"] for each in door.discover("payments")["partitions"]] == ["0"]


def test_a_feed_whose_name_ends_as_a_path_does_takes_nobodys_fetches(doors: Doors) -> None:
    door = doors(dialect="v2b")
    for name in ("orders", "orders/events"):
        door.create(name)
        door.append([b"of %s" % name.encode()], name=name)
    assert door.read() == ["of orders"]
    assert door.read(name="orders/events") == ["of orders/events"]
    assert door.discover("orders/events")["partitions"]
    door.log.delete_stream("orders")
    assert door.get("orders/events", token="x", partition=0, cursor="_first").status_code == 400


def test_tls(doors: Doors, tmp_path: Path) -> None:
    from tests.certificate_authority import Authority

    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    door = doors(tls_cert=certificate, tls_key=key)
    door.create()
    assert door.url.startswith("https://127.0.0.1:")
    assert requests.get(f"{door.url}/orders", verify=str(authority.file), timeout=120).status_code == 200
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{door.url}/orders", timeout=120)
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(f"{door.url}/orders".replace("https:", "http:"), timeout=120)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_where_it_listens(doors: Doors, host: str) -> None:
    try:
        door = doors(host=host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    door.create()
    assert door.discover()["partitions"]


def test_a_port_that_is_taken(doors: Doors, door: Door, tmp_path: Path) -> None:
    from spark_streams.log import ReferenceLog
    from spark_streams.server import ServerThread

    port = int(door.url.rpartition(":")[2])
    with ReferenceLog(tmp_path / "second") as log, pytest.raises(OSError, match="feedapi"):
        ServerThread(log, feed=FeedConfig(port=port)).start()
