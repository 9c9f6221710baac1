"""Reading over TLS, and what a mismatch says; planning and reading as Spark does them, without a session.

The fixture's log speaks no TLS: one that does is in this process.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from spark_streams.sources.amqp_events import connect

from spark_streams.errors import ConnectFailed
from spark_streams.log import ReferenceLog
from spark_streams.options.amqp_events import parse_source
from spark_streams.server import AmqpConfig, ServerThread
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.task import read_range
from spark_streams.testing import StreamFactory


def self_signed(folder: Path, name: x509.GeneralName) -> tuple[str, str]:
    """Write a certificate for ``name`` and its key; return their paths."""
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate, plain = folder / "cert.pem", serialization.NoEncryption()
    certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    key_form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(key.private_bytes(*key_form))
    return str(certificate), str(folder / "key.pem")


class Served:
    def __init__(self, server: Any, certificate: str) -> None:
        self.address, self.certificate = server.urls["amqp"].partition("//")[2], certificate


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A log with the three events e0, e1, e2, behind TLS."""
    cert, key = self_signed(tmp_path / "server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    config = AmqpConfig(port=0, tls_cert=cert, tls_key=key)
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, config) as server:
        held = log.create_stream("orders", 1).partitions["0"]
        held.append([b"\x00\x53\x75\xa0\x02e" + str(n).encode() for n in range(3)])
        yield Served(server, cert)


def read(**more: str) -> list[bytes]:
    options = parse_source({"stream": "orders", "requestTimeout": "120000", **more}, streaming=False)
    schema = pa.schema([("value", pa.binary())])
    planned = plan_batch(options, ("value",), connect)
    return [v for p in planned for b in read_range(options, p, schema, connect) for v in b.column(0).to_pylist()]


def test_reading_over_tls(served: Served) -> None:
    url = f"amqps://guest:guest@{served.address}"
    assert read(url=url, **{"tls.caFile": served.certificate}) == [b"e0", b"e1", b"e2"]


def test_an_option_of_tls_makes_tls_of_amqp(served: Served) -> None:
    url = f"amqp://guest:guest@{served.address}"
    assert len(read(url=url, **{"tls.caFile": served.certificate})) == 3


def test_plain_where_tls_is_spoken(served: Served) -> None:
    with pytest.raises(ConnectFailed, match="write amqps:// instead of amqp://"):
        read(url=f"amqp://guest:guest@{served.address}")


def test_tls_where_plain_is_spoken(reference_log: StreamFactory) -> None:
    url = reference_log.process.urls["amqp"].replace("amqp://", "amqps://guest:guest@")
    with pytest.raises(ConnectFailed, match="write amqp:// instead of amqps:// in option 'url'"):
        read(url=url)


def test_an_authority_that_is_not_trusted(served: Served, tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match=r"does not verify.*'tls\.caFile'"):
        read(url=f"amqps://guest:guest@{served.address}")
    other, _ = self_signed(tmp_path / "other", x509.DNSName("other"))
    with pytest.raises(ConnectFailed, match=r"does not verify.*'tls\.caFile'"):
        read(url=f"amqps://guest:guest@{served.address}", **{"tls.caFile": other})


def test_a_certificate_for_another_host(served: Served) -> None:
    url = f"amqps://guest:guest@{served.address.replace('127.0.0.1', 'localhost')}"
    ca = {"tls.caFile": served.certificate}
    with pytest.raises(ConnectFailed, match=r"Hostname mismatch.*'tls\.verifyHostname'"):
        read(url=url, **ca)
    assert len(read(url=url, **ca, **{"tls.verifyHostname": "false"})) == 3
