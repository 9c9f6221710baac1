"""Whether the log runs, and whether it is ready for clients."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from spark_streams.server import AmqpConfig, FeedConfig
from spark_streams.server.web.metrics import Health
from tests.server.web.conftest import Window


def test_everybody_is_told(windows: Callable[..., Window]) -> None:
    window = windows(AmqpConfig(port=0), users={"ann": "secret"})
    for path, text in (("/healthz", "ok\n"), ("/readyz", "ready\n")):
        answer = window.get(path)
        assert (answer.status_code, answer.text) == (200, text)
    assert not (window.log.data_dir / "ready").exists()


def test_a_door_that_does_not_listen_is_named(windows: Callable[..., Window]) -> None:
    window = windows(AmqpConfig(port=0), FeedConfig(port=0))
    door = window.server.server.door("feedapi")
    window.server.call(lambda: setattr(door, "url", ""))
    answer = window.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "the door feedapi does not listen\n")
    assert window.get("/healthz").status_code == 200


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_cannot_be_written_is_named(window: Window) -> None:
    window.log.data_dir.chmod(0o500)
    try:
        answer = window.get("/readyz")
    finally:
        window.log.data_dir.chmod(0o700)
    assert answer.status_code == 503 and "cannot be written" in answer.text


def test_all_who_ask_at_once_have_one_trial(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    def writable(health: Health) -> bool:
        nonlocal tried
        tried += 1
        return True

    monkeypatch.setattr(Health, "_writable", writable)
    monkeypatch.setattr("spark_streams.server.web.metrics.TRIAL_S", 3_600.0)
    assert {window.get("/readyz").text for _ in range(5)} == {"ready\n"} and tried == 1
    monkeypatch.setattr("spark_streams.server.web.metrics.TRIAL_S", 0.0)
    assert window.get("/readyz").text == "ready\n" and tried == 2


def test_a_folder_that_is_gone_is_named(window: Window) -> None:
    moved = window.log.data_dir.with_name("moved")
    window.log.data_dir.rename(moved)
    try:
        answer = window.get("/readyz")
    finally:
        moved.rename(window.log.data_dir)
    assert answer.status_code == 503 and "cannot be written" in answer.text
