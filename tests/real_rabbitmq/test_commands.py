"""The command line on a real RabbitMQ: streams and super streams are created, shown, read and deleted."""

from __future__ import annotations

import json
import re
import secrets

import pytest

from tests.cli.peers.opened import run

pytestmark = pytest.mark.rabbitmq


def test_streams_and_super_streams_come_and_go(rabbitmq_url: str, rabbitmq_amqp_url: str) -> None:
    plain, parts = (f"{name}-{secrets.token_hex(4)}" for name in ("plain", "parts"))
    made = run("log", "create", rabbitmq_url, plain, f"{parts}:3", "--retention-ms", "86400000")
    assert (made.exit_code, made.stdout) == (0, f"{plain}: created\n{parts}: created\n"), made.stderr
    try:
        again = run("log", "create", rabbitmq_url, plain, f"{parts}:3", "--retention-ms", "86400000")
        assert again.exit_code == 1 and f"there is a stream '{plain}' already" in again.stderr
        other = run("log", "create", rabbitmq_url, plain, "--if-not-exists")
        assert other.exit_code == 1 and "there is one already, with other settings" in other.stderr
        kept = run("log", "create", rabbitmq_url, f"{parts}:3", "--retention-ms", "86400000", "--if-not-exists")
        assert kept.stdout == f"{parts}: was there\n", kept.stderr
        kept = run("log", "create", rabbitmq_url, parts, "--if-not-exists")
        assert kept.stdout == f"{parts}: was there\n", kept.stderr
        for beside in (parts, f"{plain}:2"):  # a stream beside the super stream, and the other way round
            taken = run("log", "create", rabbitmq_url, beside)
            assert taken.exit_code == 1 and "already" in taken.stderr

        names = [f"{parts}-{number}" for number in range(3)]
        for address in (rabbitmq_url, rabbitmq_amqp_url):
            for name, partitions in ((plain, [plain]), (parts, names)):
                found = json.loads(run("inspect", f"{address}#{name}", "--json").stdout)
                assert [each["partition"] for each in found["partitions"]] == partitions
                assert found["kind"].endswith("super stream") == (name == parts)
                shown = run("inspect", f"{address}#{name}", COLUMNS="80").stdout
                assert all(each in shown for each in partitions)
        for name in (plain, parts):
            told = json.loads(run("inspect", rabbitmq_amqp_url, name, "--json").stdout)
            assert {"x-queue-type": "stream", "x-max-age": "86400s"}.items() <= told["config"].items(), told
        assert re.search(r"x-max-age +│ 86400s ", run("inspect", rabbitmq_amqp_url, plain).stdout)
        told = json.loads(run("inspect", rabbitmq_url, parts, "--json").stdout)
        assert told["config"] is None and "RabbitMQ 4 tell them over AMQP" in told["why"]
        missing = run("inspect", rabbitmq_amqp_url, f"{plain}-x")
        assert missing.exit_code == 1 and f"'{plain}-x'" in missing.stderr
        missing = run("inspect", f"{rabbitmq_amqp_url}#{plain}-x")
        assert missing.exit_code == 1 and f"'{plain}-x'" in missing.stderr and "super stream" not in missing.stderr
        refused = run("log", "create", rabbitmq_amqp_url, "x")
        assert refused.exit_code == 1 and "with a url rabbitmq-stream://" in refused.stderr
    finally:
        gone = run("log", "delete", rabbitmq_url, plain, parts)
    assert (gone.exit_code, gone.stdout) == (0, f"{plain}: deleted\n{parts}: deleted\n"), gone.stderr
    assert run("log", "delete", rabbitmq_url, plain, "--if-exists").stdout == f"{plain}: was not there\n"
