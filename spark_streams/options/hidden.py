"""Options that can be printed and pickled without showing a secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_streams.endpoint import Secret, redact_url
from spark_streams.options.names import SECRET, URL

__all__ = ["HiddenOptions"]


class HiddenOptions(Mapping[str, str]):
    """Options as Spark hands them over, safe to print; a pickle of them holds no secret in the clear.

    Args:
        options: name to value.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name: Secret(value) if name.lower() in SECRET else value for name, value in options.items()}

    def __getitem__(self, name: str) -> str:
        value = self._values[name]
        return value.reveal() if isinstance(value, Secret) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = {n: redact_url(self[n]) if n.lower() == URL else str(value) for n, value in self._values.items()}
        return f"HiddenOptions({shown})"
