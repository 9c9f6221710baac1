"""What the tests before this one have signed in with, which would be taken out of its messages."""

from __future__ import annotations

from spark_streams import redaction


def forget_all() -> None:
    """Forget every secret."""
    redaction._sent.clear()
