"""Clients in these tests pause a twentieth as long between two attempts."""

from tests.client.conftest import short_pauses as short_pauses
