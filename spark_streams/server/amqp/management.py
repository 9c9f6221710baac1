"""Answers requests to ``$management`` of the AMQP door, which create, delete and describe streams; an extension.

::

    request   properties              message-id, reply-to
              application properties  operation "CREATE", "DELETE" or "READ", type "spark-streams:stream", name
              amqp-value              null; to create, a map of strings with "partitions" and settings of the stream
    reply     application properties  status-code and status-description: 201 it was created, 200 it was there as
                                      requested, or is described, 204 it was deleted, 400 a value is invalid, 403 the
                                      user may not, 404 there is none, 409 there is another one
              amqp-value              null; of a description a map: "name", "type" ("stream"), "partitions" (their
                                      number), and "arguments", a map of the settings

The operations and their place are those of the draft "AMQP Management Version 1.0"; a real RabbitMQ has another address
and other requests for queues, and the same shape of a description. Event Hubs has none of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from http import HTTPStatus

from spark_streams.errors import NameTaken, StreamExists, UnknownStream
from spark_streams.server.amqp.attaches import stream_names
from spark_streams.server.amqp.connection_links import LinkResources
from spark_streams.server.amqp.error_conditions import NOT_FOUND, NOT_IMPLEMENTED, UNAUTHORIZED
from spark_streams.server.amqp.requests import Reply, Request
from spark_streams.server.stream_changes import SETTINGS, create_stream, read_partitions
from spark_streams.server.users import permissions_of
from spark_streams.wire.amqp.engine.session import INVALID_FIELD
from spark_streams.wire.amqp.management import ARGUMENTS, CREATE, DELETE, PARTITIONS, READ, STREAM_TYPE


async def answer(request: Request, node: LinkResources, user: str) -> Reply:
    """Make the change of a request, in the worker thread, or describe a stream; return the reply.

    Args:
        request: the request.
        node: the node; its settings have the permissions.
        user: the user who asks.
    """
    operation, name = request.text("operation"), request.text("name")
    if operation not in (CREATE, DELETE, READ) or request.text("type") != STREAM_TYPE:
        expected = f"expected {CREATE}, {DELETE} or {READ} of {STREAM_TYPE}"
        return Reply(HTTPStatus.NOT_IMPLEMENTED, expected, NOT_IMPLEMENTED)
    permissions, needed = permissions_of(node.config.permissions, user), "read" if operation == READ else "configure"
    if permissions is not None and not all(permissions.allow(needed, each) for each in stream_names(name)):
        return Reply(HTTPStatus.FORBIDDEN, f"user '{user}' may not {needed} stream '{name:.200}'", UNAUTHORIZED)
    if operation == READ:
        return _described(node, name)
    change = partial(_create, node, name, request.body, user) if operation == CREATE else partial(_delete, node, name)
    return await node.worker.step(change)


def _create(node: LinkResources, name: str, body: object, user: str) -> Reply:
    given = body if isinstance(body, Mapping) else {}
    settings = {str(key): str(int(value) if isinstance(value, int) else value) for key, value in given.items()}
    count = settings.pop(PARTITIONS, None)
    unknown = sorted(settings.keys() - SETTINGS)
    if unknown:
        known = ", ".join((PARTITIONS, *sorted(SETTINGS)))
        return _invalid(f"there is no setting '{unknown[0]:.40}': expected some of {known}")
    try:
        partitions = None if count is None else read_partitions(count, node.log.config.max_partitions)
        _, created = create_stream(node.log, name, partitions, settings, user)
    except NameTaken as fault:
        return Reply(HTTPStatus.CONFLICT, str(fault), INVALID_FIELD)
    except StreamExists as fault:
        return Reply(HTTPStatus.CONFLICT, f"stream '{name:.200}' {fault}", INVALID_FIELD)
    except ValueError as fault:
        return _invalid(str(fault))
    return Reply(HTTPStatus.CREATED if created else HTTPStatus.OK, "it was created" if created else "it was there")


def _delete(node: LinkResources, name: str) -> Reply:
    try:
        node.log.delete_stream(name)
    except UnknownStream:
        return _unknown(name)
    return Reply(HTTPStatus.NO_CONTENT, "it was deleted")


def _described(node: LinkResources, name: str) -> Reply:
    stream = node.log.find(name)
    if stream is None:
        return _unknown(name)
    told = {"name": name, "type": "stream", PARTITIONS: len(stream.partitions), ARGUMENTS: asdict(stream.config)}
    return Reply(HTTPStatus.OK, "it is described", body=told)


def _unknown(name: str) -> Reply:
    return Reply(HTTPStatus.NOT_FOUND, f"there is no stream '{name:.200}' here", NOT_FOUND)


def _invalid(why: str) -> Reply:
    return Reply(HTTPStatus.BAD_REQUEST, why, INVALID_FIELD)
