"""Command ``spark-streams filter``, which shows the tree of a filter and the part that a peer would check."""

from __future__ import annotations

import sys
from typing import Final

import click

from spark_streams.cli.errors import ErrorReportingGroup
from spark_streams.errors import FilterError, OptionError
from spark_streams.filters import KEY, Expression, Reference, property_of, read_filter, to_text, to_tree
from spark_streams.filters.row_columns import columns_needed
from spark_streams.filters.targets.amqp import AmqpCapability, AmqpSplit, split_for_amqp
from spark_streams.filters.targets.feed import FeedSplit, split_for_feed
from spark_streams.filters.targets.rabbitmq import RabbitSplit, split_for_rabbitmq
from spark_streams.filters.tree import references
from spark_streams.options.filter_values import VALUE_FROM
from spark_streams.wire.amqp.dialects import DIALECTS, EVENT_STREAMS
from spark_streams.wire.feed.json_pointer import pointer_of

_Split = AmqpSplit | RabbitSplit | FeedSplit
_OPTIONS: Final = {
    "amqp-events": ("--dialect", "--sql", "--draft-types", "--no-event-streams"),
    "rabbitmq-stream": ("--filter-value-from",),
    "feedapi": ("--feed-filter",),
}
"""The formats, and the options that describe a peer of each."""
_MAX_CHARACTERS: Final = 2_000_000
"""The most characters that are read from stdin; every filter has fewer."""
_NOTHING: Final = "nothing"
_EPILOG = """\b
What is pushed may let more events pass than the filter does; then it remains, and is
checked on the events that come. Both together are always the filter. Without the
options below, the peer is one that has what its format's specification asks for.

\b
Examples:
  spark-streams filter explain "type = 'order' AND publish_time >= -386380800000" --to amqp-events
  spark-streams filter explain "type = 'order' AND offset > 100" --to rabbitmq-stream \\
      --filter-value-from application_properties.type
  spark-streams filter explain "type = 'order'" --to feedapi --feed-filter subject=type
"""


@click.group("filter", cls=ErrorReportingGroup)
def filter_group() -> None:
    """Look at filters: the one language of the option `filter` of all three formats."""


@filter_group.command(epilog=_EPILOG)
@click.argument("text")
@click.option("--to", "target", type=click.Choice(list(_OPTIONS)), required=True, help="The format it is read with.")
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    help="amqp-events: what the peer is: rabbitmq has SQL filters (4.2 and later), event-hubs has none.",
)
@click.option("--sql", is_flag=True, help="amqp-events: the peer has full SQL filters, as RabbitMQ and our log do.")
@click.option(
    "--draft-types", is_flag=True, help="With --sql: it compares types only as far as the draft says, unlike those two."
)
@click.option("--no-event-streams", is_flag=True, help="amqp-events: the peer has no event stream filters.")
@click.option(
    "--filter-value-from",
    metavar="PART",
    help="rabbitmq-stream: what publishers gave as filter value: key, application_properties.NAME or properties.FIELD.",
)
@click.option(
    "--feed-filter",
    multiple=True,
    metavar="NAME=FIELD",
    help="feedapi: the feed's filter NAME compares FIELD: key, a member or a JSON pointer. May be repeated.",
)
@click.pass_context
def explain(
    context: click.Context,
    text: str,
    target: str,
    dialect: str | None,
    sql: bool,
    draft_types: bool,
    no_event_streams: bool,
    filter_value_from: str | None,
    feed_filter: tuple[str, ...],
) -> None:
    """Print the tree of the filter TEXT, the part that a peer is asked to check, and the rest for the reader.

    TEXT is a filter, or its protobuf form in base64; "-" reads it from stdin.
    """
    _check_options(context, target)
    peer = DIALECTS[dialect or EVENT_STREAMS.name]
    if sql and peer.sql_filters is False:
        raise OptionError("--sql", f"{peer.title} has no such filters: leave it out, or --dialect")
    if draft_types and not sql:
        raise OptionError("--draft-types", "is about full SQL filters: give --sql beside it")
    try:
        expression = read_filter(sys.stdin.read(_MAX_CHARACTERS) if text == "-" else text)
        columns_needed(expression, feed=target == "feedapi")
    except FilterError as fault:
        raise click.BadParameter(str(fault), param_hint="TEXT") from fault
    split: _Split
    if target == "amqp-events":
        event_streams = peer.event_stream_filters and not no_event_streams
        split = split_for_amqp(
            expression, AmqpCapability(event_streams, sql or bool(peer.sql_filters), not draft_types)
        )
    elif target == "rabbitmq-stream":
        split = _rabbitmq(expression, filter_value_from)
    else:
        split = _feed(expression, feed_filter)
    _section("filter", to_tree(expression))
    _section(f"pushed to {target}", "\n".join(split.phrases))
    _section("remains", None if split.residual is None else to_text(split.residual), last=True)


def _check_options(context: click.Context, target: str) -> None:
    for format_name, names in _OPTIONS.items():
        for name in names:
            if format_name != target and context.params[name.lstrip("-").replace("-", "_")]:
                raise OptionError(name, f"is for --to {format_name}, not {target}")


def _rabbitmq(expression: Expression, value_from: str | None) -> _Split:
    if value_from is not None and not VALUE_FROM.fullmatch(value_from):
        raise OptionError(
            "--filter-value-from",
            f"'{value_from}' has no filter value, expected key, application_properties.NAME or properties.FIELD",
        )
    reference = KEY if value_from == "key" else None if value_from is None else property_of(value_from)
    return split_for_rabbitmq(expression, reference)


def _feed(expression: Expression, pairs: tuple[str, ...]) -> _Split:
    referenced = {_pointer(reference): reference for reference in references(expression)}
    fields: dict[str, Reference] = {}
    for pair in pairs:
        name, sign, field = pair.partition("=")
        if not name or not sign or not field:
            raise OptionError("--feed-filter", f"'{pair}' is not NAME=FIELD, expected such as subject=/data/subject")
        reference = KEY if field == "key" else property_of(field)
        fields[name] = referenced.get(_pointer(reference), reference)
    return split_for_feed(expression, fields)


def _pointer(reference: Reference) -> Reference | str:
    """Return the JSON pointer of a member, so that a member and its pointer compare equal."""
    name = reference.name
    if name is None:
        return reference
    return name if name.startswith("/") or name.isdecimal() else pointer_of(name)


def _section(title: str, body: str | None, *, last: bool = False) -> None:
    click.echo(title)
    for line in (body or _NOTHING).split("\n"):
        click.echo(f"  {line}")
    if not last:
        click.echo()
