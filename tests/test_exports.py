"""What is public: each name in ``__all__`` is there, and users can import exactly what is listed here.

Packages and modules with ``__all__`` export that. Any other module exports what it defines, and what it imports under
the same name (``import Secret as Secret``), without an underscore before it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil

import pytest

import spark_streams

PUBLIC = {
    "spark_streams": ["register"],
    "spark_streams.cli": ["main", "run"],
    "spark_streams.client": [
        "AmqpClient",
        "Bounds",
        "Consumer",
        "FilterValues",
        "OffsetWalk",
        "Publisher",
        "RabbitClient",
        "RabbitPublishing",
        "RangeRead",
        "StreamDescription",
        "TaskIdentity",
        "TaskPublisher",
        "encode_columns",
        "key_hash",
    ],
    "spark_streams.endpoint": [
        "AMQP_SCHEMES",
        "DEFAULT_PORTS",
        "HTTP_SCHEMES",
        "RABBITMQ_SCHEMES",
        "Endpoint",
        "Node",
        "Secret",
        "Tls",
        "parse_url",
        "redact_url",
        "with_tls_scheme",
    ],
    "spark_streams.errors": [
        "AuthenticationFailed",
        "CheckpointError",
        "ConnectFailed",
        "ConnectionLost",
        "CorruptLog",
        "DeadlineExceeded",
        "DeliveryFailed",
        "FilterError",
        "LocalProtocolError",
        "LogError",
        "LogLocked",
        "NameTaken",
        "NotFound",
        "OptionError",
        "OwnershipLost",
        "PackageMissing",
        "PartitionEnded",
        "PeerError",
        "PositionLost",
        "ProtocolError",
        "Refused",
        "RemoteProtocolError",
        "SchemaError",
        "SparkStreamsError",
        "SpoolLost",
        "StreamExists",
        "TransportError",
        "UnknownStream",
    ],
    "spark_streams.filters": [
        "BODY_SIZE",
        "EVENT_TIME",
        "KEY",
        "OFFSET",
        "PARTITION",
        "PUBLISH_TIME",
        "And",
        "Expression",
        "Not",
        "Operator",
        "Or",
        "Predicate",
        "Reference",
        "ReferenceKind",
        "Value",
        "ValueType",
        "all_of",
        "any_of",
        "builder",
        "check",
        "evaluate",
        "evaluate_columns",
        "from_protobuf",
        "negate",
        "parse",
        "property_of",
        "read_filter",
        "to_protobuf",
        "to_text",
        "to_tree",
    ],
    "spark_streams.instants": ["bounded", "iso_dates", "iso_instants", "read_instant", "read_iso"],
    "spark_streams.log": [
        "NO_TIMESTAMP",
        "Appended",
        "Header",
        "LogConfig",
        "Partition",
        "Records",
        "ReferenceLog",
        "StateStore",
        "StoredBatch",
        "Stream",
        "StreamConfig",
        "TimestampRefused",
        "format_offset",
    ],
    "spark_streams.monitoring": [
        "DataLoss",
        "OpenTelemetryMetrics",
        "PartitionProgress",
        "Progress",
        "PrometheusMetrics",
        "StreamProgressListener",
        "observed",
    ],
    "spark_streams.position": [
        "EARLIEST",
        "LATEST",
        "After",
        "At",
        "AtTime",
        "Checkpoint",
        "Earliest",
        "Latest",
        "Matching",
        "Position",
        "position_from_json",
        "position_to_json",
        "progress_offset",
        "require_format",
    ],
    "spark_streams.rows": ["COMMON_SCHEMA", "FULL_MESSAGE_SCHEMA", "MESSAGE_SCHEMA", "PROPERTIES_TYPE", "TIMESTAMP"],
    "spark_streams.server": [
        "AmqpConfig",
        "BearerToken",
        "EventHubsConfig",
        "FeedConfig",
        "LogServer",
        "Permissions",
        "RabbitConfig",
        "Redirect",
        "ServerThread",
        "WebConfig",
    ],
    "spark_streams.testing": [
        "KeptQuery",
        "LogProcess",
        "LogStream",
        "Notebook",
        "StreamFactory",
        "eventually",
        "wait_until_caught_up",
    ],
}
"""A name that is taken away here breaks somebody's program: say so in CHANGELOG.md."""

FOR_OTHER_ROOMS = {
    "spark_streams.instants": {"MAX_TIMESTAMP_MS", "MIN_TIMESTAMP_MS"},
    "spark_streams.position": {"CHECKPOINT_VERSION"},
}
"""Names without an underscore that are not for users."""


def exported_names(name: str) -> list[str]:
    """Return the names that a module is to be imported for."""
    module = importlib.import_module(name)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    found = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.ImportFrom):
            found += [alias.name for alias in node.names if alias.asname == alias.name]
    return [each for each in found if not each.startswith("_") and each not in FOR_OTHER_ROOMS.get(name, ())]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_modules_export_what_is_listed(name: str) -> None:
    exported = exported_names(name)
    assert sorted(exported) == sorted(PUBLIC[name])
    assert [each for each in exported if not hasattr(importlib.import_module(name), each)] == []


def modules() -> list[str]:
    """Return every module of the package, those of sources and sinks too."""
    found = [m.name for m in pkgutil.walk_packages(spark_streams.__path__, "spark_streams.")]
    for name in ("spark_streams.sources", "spark_streams.sinks"):
        package = importlib.import_module(name)
        found += [m.name for m in pkgutil.walk_packages(package.__path__, f"{name}.")]
    return sorted({name for name in found if not name.endswith("__main__")})


def test_every_exported_name_is_there() -> None:
    exports = {name: getattr(importlib.import_module(name), "__all__", []) for name in modules()}
    assert len(exports) > 300
    missing = {
        name: [n for n in names if not hasattr(importlib.import_module(name), n)] for name, names in exports.items()
    }
    assert {name: names for name, names in missing.items() if names} == {}
    assert [name for name, names in exports.items() if len(set(names)) < len(names)] == []


@pytest.mark.parametrize("name", ["spark_streams.client", "spark_streams.filters"])
def test_what_is_exported_lazily_is_no_module_of_the_package(name: str) -> None:
    # Python would put the module where the export is expected, as soon as anything imports it.
    package = importlib.import_module(name)
    exported = {each for names in package._HOMES.values() for each in names}
    assert exported == set(package.__all__)
    assert exported & {module.name for module in pkgutil.iter_modules(package.__path__)} == set()
