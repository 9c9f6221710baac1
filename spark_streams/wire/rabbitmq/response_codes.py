"""The response codes of the stream protocol, and the names that errors show."""

from __future__ import annotations

from enum import IntEnum


class ResponseCode(IntEnum):
    """The codes of a peer's answer: the protocol's table, and two that brokers added for renewing a token (S-151)."""

    OK = 0x01
    STREAM_DOES_NOT_EXIST = 0x02
    SUBSCRIPTION_ID_ALREADY_EXISTS = 0x03
    SUBSCRIPTION_ID_DOES_NOT_EXIST = 0x04
    STREAM_ALREADY_EXISTS = 0x05
    STREAM_NOT_AVAILABLE = 0x06
    SASL_MECHANISM_NOT_SUPPORTED = 0x07
    AUTHENTICATION_FAILURE = 0x08
    SASL_ERROR = 0x09
    SASL_CHALLENGE = 0x0A
    SASL_AUTHENTICATION_FAILURE_LOOPBACK = 0x0B
    VIRTUAL_HOST_ACCESS_FAILURE = 0x0C
    UNKNOWN_FRAME = 0x0D
    FRAME_TOO_LARGE = 0x0E
    INTERNAL_ERROR = 0x0F
    ACCESS_REFUSED = 0x10
    PRECONDITION_FAILED = 0x11
    PUBLISHER_DOES_NOT_EXIST = 0x12
    NO_OFFSET = 0x13
    SASL_CANNOT_CHANGE_MECHANISM = 0x14
    SASL_CANNOT_CHANGE_USERNAME = 0x15


def code_name(code: int) -> str:
    """Return a code as errors show it, such as ``stream-does-not-exist (0x02)``; an unknown one as ``code 0x7f``."""
    try:
        return f"{ResponseCode(code).name.lower().replace('_', '-')} (0x{code:02x})"
    except ValueError:
        return f"code 0x{code:02x}"
