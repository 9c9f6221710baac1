"""For all client tests: the retry loop's pauses, a twentieth as long."""

from __future__ import annotations

import time

import pytest

from spark_streams.client import retry


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = time.sleep
    monkeypatch.setattr(retry, "_pause", lambda seconds: sleep(seconds / 20))
