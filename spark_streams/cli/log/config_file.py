"""The reader of the TOML configuration file of ``spark-streams log serve``: settings of the log and its doors.

::

    data_dir                 top level
    [users]                  NAME = "PASSWORD", at every door
    [permissions.NAME]       configure, write, read, at every door
    [log]                    LogConfig
    [log.stream]             StreamConfig, the default of all streams
    [DOOR]                   the door's settings; DOOR is amqp, rabbitmq-stream, feedapi, event-hubs
    [DOOR.users]             NAME = "PASSWORD", at this door
    [DOOR.permissions.NAME]  configure, write, read, at this door instead of [permissions.NAME]
    [[amqp.redirects]]       stream, partition, and the fields of Redirect
    [feedapi.tokens.NAME]    token, configure, write, read
    [[streams]]              name, partitions, and any key of [log.stream]

Keys are the fields of the dataclasses, and values must have their types. An error for an unknown key names the nearest.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from spark_streams.cli.arguments import StreamRequest
from spark_streams.cli.credentials import warn_if_others_may_read
from spark_streams.errors import OptionError
from spark_streams.log import LogConfig, StreamConfig
from spark_streams.protocols import load, with_doors
from spark_streams.server import BearerToken, Permissions, Redirect
from spark_streams.server.door_config import DEFAULT_USERS, DoorConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_T = TypeVar("_T")

_OPTION: Final = "--config"
_PATHS: Final = ("tls_cert", "tls_key", "tls_client_ca")
"""Keys whose values are paths of files; relative paths start at the configuration file's folder."""


def _defaults() -> dict[str, DoorConfig]:
    return {name: load(door.config)() for name, door in with_doors().items()}


@dataclass(frozen=True)
class Configuration:
    """The content of a configuration file; without a file, the defaults.

    Args:
        data_dir: folder of the log; None for a temporary one.
        log: settings of the log.
        doors: name of every door to its settings.
        streams: streams to create.
        named: doors for which the file has a table.
    """

    data_dir: Path | None = None
    log: LogConfig = field(default_factory=LogConfig)
    doors: Mapping[str, DoorConfig] = field(default_factory=_defaults)
    streams: tuple[StreamRequest, ...] = ()
    named: frozenset[str] = field(default=frozenset(), compare=False)


def read_configuration(path: Path) -> Configuration:
    """Read a configuration file.

    Raises:
        OptionError: the file cannot be read, is not TOML, or has an unknown key or a value of a wrong type; the text
            names the key and what was expected.
    """
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except (OSError, UnicodeDecodeError) as fault:
        raise OptionError(_OPTION, f"{path} cannot be read: {fault}") from fault
    except tomllib.TOMLDecodeError as fault:
        raise OptionError(_OPTION, f"{path} is no TOML: {fault}") from fault
    read = _Reader(path).configuration(content)
    passwords = {password for door in read.doors.values() for password in door.users.values()}
    if passwords - set(DEFAULT_USERS.values()) or any(getattr(door, "tokens", ()) for door in read.doors.values()):
        warn_if_others_may_read(path)
    return read


class _Reader:
    """Turns parsed TOML into settings; errors and relative paths use the path of the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._of_all_doors: dict[str, Any] = {}

    def configuration(self, content: Mapping[str, Any]) -> Configuration:
        doors = {name: load(door.config) for name, door in with_doors().items()}
        self._known("", content, ("data_dir", "users", "permissions", "log", *doors, "streams"))
        self._of_all_doors = self._users("", {key: content[key] for key in ("users", "permissions") if key in content})
        data_dir = content.get("data_dir")
        if data_dir is not None:
            self._expect("data_dir", data_dir, str, "a text: the directory's name")
        log = self._settings(LogConfig, "log", self._table("log", content.get("log", {})))
        return Configuration(
            data_dir=None if data_dir is None else self._path.parent / data_dir,
            log=log,
            doors={door: self._door(door, kind, content.get(door, {})) for door, kind in doors.items()},
            named=frozenset(doors.keys() & content.keys()),
            streams=tuple(
                self._stream(f"streams[{n}]", dict(entry), log.stream)
                for n, entry in enumerate(self._tables("streams", content.get("streams", [])))
            ),
        )

    def _door(self, door: str, kind: type[DoorConfig], value: Any) -> DoorConfig:
        table = dict(self._table(door, value))
        own = self._users(f"{door}.", table)  # they override those of all doors
        taken = own | {key: {**common, **own.get(key, {})} for key, common in self._of_all_doors.items()}
        apart: dict[str, Callable[[str, Any], Any]] = {
            "groups": self._groups,
            "redirects": self._redirects,
            "tokens": self._tokens,
        }
        for each in dataclasses.fields(kind):
            if each.name in apart and each.name in table:
                taken[each.name] = apart[each.name](f"{door}.{each.name}", table.pop(each.name))
        for key in _PATHS:  # relative to the configuration file's folder
            if isinstance(table.get(key), str):
                table[key] = str(self._path.parent / table[key])
        return self._settings(kind, door, table, **taken)

    def _groups(self, section: str, groups: Any) -> str | frozenset[str]:
        if groups != "dynamic" and not (isinstance(groups, list) and all(isinstance(g, str) for g in groups)):
            self._fail(section, f'is {groups!r}, expected "dynamic" or a list of names')
        return "dynamic" if groups == "dynamic" else frozenset(groups)

    def _redirects(self, section: str, value: Any) -> dict[tuple[str, str], Redirect]:
        return dict(self._redirect(f"{section}[{n}]", dict(e)) for n, e in enumerate(self._tables(section, value)))

    def _tokens(self, section: str, value: Any) -> tuple[BearerToken, ...]:
        return tuple(
            self._token(f"{section}.{name}", dict(self._table(f"{section}.{name}", token)))
            for name, token in self._table(section, value).items()
        )

    def _token(self, section: str, table: dict[str, Any]) -> BearerToken:
        token = table.pop("token", None)
        self._expect(f"{section}.token", token, str, "a text: the secret", show=False)
        return self._settings(BearerToken, section, table, token=token)

    def _users(self, prefix: str, table: dict[str, Any]) -> dict[str, Any]:
        """Remove users and their permissions from a table, and return them."""
        taken: dict[str, Any] = {}
        if "users" in table:
            users = self._table(f"{prefix}users", table.pop("users"))
            for name, password in users.items():
                self._expect(f"{prefix}users.{name}", password, str, "a text: the password", show=False)
            taken["users"] = dict(users)
        if "permissions" in table:
            hint = Mapping[str, Permissions]
            taken["permissions"] = self._value(f"{prefix}permissions", table.pop("permissions"), hint)
        return taken

    def _redirect(self, section: str, entry: dict[str, Any]) -> tuple[tuple[str, str], Redirect]:
        fields = {"stream": str, "partition": str, **get_type_hints(Redirect)}
        self._known(section, entry, fields)
        for key, kind in fields.items():
            if key not in entry:
                self._fail(section, f"has no {key}, expected all of {', '.join(fields)}")
            self._expect(f"{section}.{key}", entry[key], kind, "a number" if kind is int else "a text")
        return (entry.pop("stream"), entry.pop("partition")), Redirect(**entry)

    def _stream(self, section: str, entry: dict[str, Any], default: StreamConfig) -> StreamRequest:
        keys = ("name", "partitions", *(f.name for f in dataclasses.fields(StreamConfig)))
        self._known(section, entry, keys)
        name, partitions = entry.pop("name", None), entry.pop("partitions", None)
        self._expect(f"{section}.name", name, str, "a text: the stream's name")
        if partitions is not None:
            self._expect(f"{section}.partitions", partitions, int, "a whole number")
        others = {key: setting for key, setting in vars(default).items() if key not in entry}
        return StreamRequest(name, partitions, self._settings(StreamConfig, section, entry, **others))

    def _settings(self, kind: type[_T], section: str, table: Mapping[str, Any], **taken: Any) -> _T:
        """Return a dataclass of ``kind`` from a table; ``taken`` has fields that were read before."""
        names = [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
        hints = get_type_hints(kind)
        self._known(section, table, names)
        values = {key: self._value(f"{section}.{key}", value, hints[key]) for key, value in table.items()}
        try:
            return kind(**values, **taken)
        except ValueError as fault:
            self._fail(f"[{section}]", str(fault))

    def _value(self, key: str, value: Any, hint: Any) -> Any:
        """Return a value converted to the type of its setting, ``hint``."""
        kinds = get_args(hint) or (hint,)
        if get_origin(hint) is Literal:
            if value not in kinds:
                self._fail(key, f"is {value!r}, expected one of {', '.join(map(repr, kinds))}")
            return value
        if get_origin(hint) is frozenset:
            if not isinstance(value, list) or not all(type(entry) is kinds[0] for entry in value):
                self._fail(key, f"is {value!r}, expected a list of {'numbers' if int in kinds else 'texts'}")
            return frozenset(value)
        if get_origin(hint) is Mapping:
            return {
                name: self._value(f"{key}.{name}", each, kinds[1]) for name, each in self._table(key, value).items()
            }
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self._settings(hint, key, self._table(key, value))
        for kind, words in ((bool, "true or false"), (int, "a whole number"), (str, "a text")):
            if kind in kinds:
                self._expect(key, value, kind, words)
                return value
        self._fail(key, "is written as a table of its own")

    def _expect(self, key: str, value: Any, kind: type, words: str, *, show: bool = True) -> None:
        if type(value) is not kind:
            self._fail(key, f"is {value!r}, expected {words}" if show else f"is no text, expected {words}")

    def _table(self, key: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            self._fail(key, f"is {value!r}, expected a table, [{key}]")
        return value

    def _tables(self, key: str, value: Any) -> list[Mapping[str, Any]]:
        if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
            self._fail(key, f"is no list of tables, expected [[{key}]] before each")
        return value

    def _known(self, section: str, table: Mapping[str, Any], names: Collection[str]) -> None:
        for key in table:
            if key not in names:
                near = difflib.get_close_matches(key, names, 1, 0.5)
                hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(names)}"
                self._fail(f"{section}.{key}" if section else key, f"is not known: {hint}")

    def _fail(self, key: str, problem: str) -> NoReturn:
        raise OptionError(_OPTION, f"{self._path}: {key} {problem}")
