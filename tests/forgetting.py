"""What tests before this one have left in the process, which would change its messages."""

from __future__ import annotations

import sys

from spark_streams import redaction


def forget_all() -> None:
    """Forget every secret, and the ports that clients have been at: another test may be given one of them."""
    redaction._sent.clear()
    looked = sys.modules.get("spark_streams.client.what_answers")
    if looked is not None:
        looked._RIGHT.clear()
