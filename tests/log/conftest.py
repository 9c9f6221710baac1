"""What the tests of the log share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def unforced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Force nothing to the disk: a system that goes on finds the same, and hundreds of openings would wait for it."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)
