"""The protobuf form: bytes that were made by hand, the proposal's own definitions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

import spark_streams.filters
from spark_streams.errors import FilterError
from spark_streams.filters import Expression, all_of, any_of, expression_pb2, from_protobuf, negate, parse, to_protobuf
from spark_streams.filters.limits import MAX_NODES
from spark_streams.filters.protobuf import MAX_BYTES, MAX_NESTING
from tests.filters.seed import SEED, Expr, SeedPredicate, described

VECTORS = [
    ("k = 'v'", "0800120c080012016b18002201762800"),
    ("event_time BETWEEN 1 AND 5", "0800120c0801180d2201312201352801"),
    (
        "k = 'v' AND event_time BETWEEN 1 AND 5",
        "08011a100800120c080012016b1800220176280022100800120c0801180d2201312201352801",
    ),
    ("NOT k = 'v'", "08031a100800120c080012016b18002201762800"),
    ("k IS NULL", "08001207080012016b1800"),
]
"""Made by hand from the proposal's field numbers; the last one has the form of E-1."""


@pytest.mark.parametrize(("text", "encoded"), VECTORS)
def test_the_vectors_of_the_notes(text: str, encoded: str) -> None:
    assert to_protobuf(parse(text)).hex() == encoded
    assert from_protobuf(bytes.fromhex(encoded)) == parse(text)


@pytest.mark.parametrize(("text", "encoded"), VECTORS)
def test_vectors_that_are_cut_off_are_refused(text: str, encoded: str) -> None:
    whole = bytes.fromhex(encoded)
    for length in range(len(whole)):
        with pytest.raises(FilterError):
            from_protobuf(whole[:length])


def described_by(file: descriptor_pb2.FileDescriptorProto) -> dict[str, Any]:
    """Return what a file defines, by full names: fields, and numbers of enumerations."""
    found: dict[str, Any] = {}
    for message in file.message_type:
        for field in message.field:
            of = field.type_name.removeprefix(f".{file.package}")
            found[f"{message.name}.{field.name}"] = (field.number, field.label, field.type, of)
        for enumeration in message.enum_type:
            for value in enumeration.value:
                found[f"{message.name}.{enumeration.name}.{value.name}"] = value.number
    return found


OURS = {
    "Predicate.MessageRef.KEY": 100,
    "Predicate.MessageRef.PARTITION": 101,
    "Predicate.MessageRef.OFFSET": 102,
    "Predicate.MessageRef.BODY_SIZE": 103,
}


def test_what_was_generated_is_the_seed_and_four_references_of_ours() -> None:
    proto = Path(spark_streams.filters.__file__).with_name("expression.proto").read_text()
    generated = descriptor_pb2.FileDescriptorProto.FromString(expression_pb2.DESCRIPTOR.serialized_pb)
    seed = described_by(described(SEED, "seed"))
    assert len(seed) == 9 + 3 + 14 + 3 + 4
    assert described_by(generated) == seed | OURS
    assert described_by(described(proto, "spark_streams.filters")) == seed | OURS, (
        "expression.proto was changed: generate"
    )


def one(**fields: Any) -> bytes:
    """Return the bytes of an Expr of type PREDICATE, with the proposal's definitions."""
    name = {"name": "k"} if fields.get("ref", "PROPERTY") == "PROPERTY" else {}
    predicate = SeedPredicate(**{"ref": "PROPERTY", "op": "EQUALS", **name, **fields})
    return bytes(Expr(ty="PREDICATE", predicate=predicate).SerializeToString())


K = Expr.FromString(one(values=["v"]))


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (one(values=["v"]), "k = 'v'"),  # without ty: STRING (E-2)
        (one(), "k IS NULL"),  # E-1
        (one(op="NOT_EQUALS"), "k IS NOT NULL"),
        (one(values=["+007"], ty="LONG"), "k = 7"),
        (one(values=["-9223372036854775808"], ty="LONG"), "k = -9223372036854775808"),
        (one(values=["5"], ty="DOUBLE"), "k = 5.0"),
        (one(values=["1.0E10"], ty="DOUBLE"), "k = 1e10"),  # as Java writes it
        (one(values=["4.9E-324"], ty="DOUBLE"), "k = 5e-324"),
        (one(op="IN", values=["1"], ty="LONG"), "k IN (1)"),
        (one(op="NOT_IN", values=["a", "b"]), "k NOT IN ('a', 'b')"),
        (one(op="LIKE", values=["a%"]), "k LIKE 'a%'"),
        (one(op="NOT_LIKE", values=["a%"]), "k NOT LIKE 'a%'"),
        (one(op="CONTAINS_ALL", values=["a"]), "k CONTAINS ALL ('a')"),
        (one(op="CONTAINS_ANY", values=["a"]), "k CONTAINS ANY ('a')"),
        (one(op="CONTAINS_NONE", values=["a"]), "k CONTAINS NONE ('a')"),
        (one(op="BETWEEN", values=["a", "b"]), "k BETWEEN 'a' AND 'b'"),
        (one(op="GREATER_THAN", values=["1.5"], ty="DOUBLE", ref="EVENT_TIME"), "event_time > 1.5"),
        (one(op="LESS_THAN", values=["5"], ty="LONG", ref="PUBLISH_TIME"), "publish_time < 5"),
        (one(op="LESS_THAN", values=["5"], ty="LONG", ref="PUBLISH_TIME", name=""), "publish_time < 5"),
        (one(values=["å"], name="ø"), "[ø] = 'å'"),
    ],
)
def test_what_the_library_writes_of_the_seed_is_read(encoded: bytes, text: str) -> None:
    assert from_protobuf(encoded) == parse(text)
    assert from_protobuf(to_protobuf(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "Expr needs ty"),
        (b"\x08\x00", "PREDICATE needs predicate"),
        (b"\x08\x07", "ty: not known: 7"),  # E-16
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "ty: not known"),
        (Expr(ty="AND", lhs=K).SerializeToString(), "AND needs rhs"),
        (Expr(ty="OR", rhs=K).SerializeToString(), "OR needs lhs"),
        (Expr(ty="AND", lhs=K, rhs=K, predicate=K.predicate).SerializeToString(), "AND has no predicate"),
        (Expr(ty="NOT").SerializeToString(), "NOT needs lhs"),
        (Expr(ty="NOT", rhs=K).SerializeToString(), "NOT needs lhs"),  # E-3
        (Expr(ty="NOT", lhs=K, rhs=K).SerializeToString(), "NOT has no rhs"),
        (Expr(ty="PREDICATE", predicate=K.predicate, lhs=K).SerializeToString(), "PREDICATE has no lhs"),
        (Expr(ty="NOT", lhs=Expr(ty="NOT", lhs=Expr(ty="NOT"))).SerializeToString(), "lhs.lhs: NOT needs lhs"),
        (Expr(ty="AND", lhs=K, rhs=Expr(ty="OR", lhs=K)).SerializeToString(), "rhs: OR needs rhs"),
        (b"\x08\x00\x12\x00", "predicate: Predicate needs ref"),
        (b"\x08\x00\x12\x02\x08\x00", "predicate: Predicate needs op"),
        (b"\x08\x00\x12\x04\x08\x63\x18\x00", "predicate.ref: not known: 99"),
        (b"\x08\x00\x12\x04\x08\x00\x18\x0e", "predicate.op: not known: 14"),
        (bytes.fromhex("0800120c080012016b18002201762803"), "predicate.ty: not known: 3"),
        (bytes.fromhex("0800120e080012016b180022017628003001"), "no field of Predicate has the number 6"),
        (bytes.fromhex("0800120c080012016b18002201762800") + b"\x28\x01", "no field of Expr has the number 5"),
        (one(values=["v"], name=""), "predicate.name: a property needs a name"),
        (one(values=["v"], name="properties.user_id"), "predicate.name: properties.user_id is bytes"),
        (one(values=["1"], ty="LONG", ref="EVENT_TIME", name="x"), "predicate.name: EVENT_TIME has no name"),
        (one(ty="STRING"), "predicate.op: EQUALS needs one value, not 0"),
        (one(values=["a", "b"]), "predicate.op: EQUALS needs one value, not 2"),
        (one(op="IN"), "predicate.op: IN needs at least one value"),  # E-12
        (one(op="BETWEEN", values=["a"]), "predicate.op: BETWEEN needs two values, not 1"),
        (one(op="LIKE"), "predicate.op: LIKE needs one value, not 0"),
        (one(op="LIKE", values=["5"], ty="LONG"), "predicate.values[0]: LIKE compares texts"),
        (one(op="LIKE", values=["5"], ref="EVENT_TIME"), "predicate.op: LIKE compares texts"),  # E-13
        (one(values=["5"], ref="PUBLISH_TIME"), "predicate.values[0]: publish_time is a number"),
        (one(values=["x"], ty="LONG"), "predicate.values[0]: expected an integer within 64 bits, not 'x'"),
        (one(values=["1.0"], ty="LONG"), "expected an integer"),
        (one(values=["9223372036854775808"], ty="LONG"), "expected an integer within 64 bits"),
        (one(values=["9" * 100_000], ty="LONG"), "expected an integer within 64 bits"),
        (one(values=[""], ty="LONG"), "expected an integer"),
        (one(values=[" 5"], ty="LONG"), "expected an integer"),
        (one(values=["٥"], ty="LONG"), "expected an integer"),
        (one(op="IN", values=["1", "x"], ty="LONG"), "predicate.values[1]"),
        (one(values=["NaN"], ty="DOUBLE"), "expected a finite decimal number"),  # E-8
        (one(values=["Infinity"], ty="DOUBLE"), "expected a finite decimal number"),
        (one(values=["1e999"], ty="DOUBLE"), "expected a finite decimal number"),
        (one(values=["0x1p3"], ty="DOUBLE"), "expected a finite decimal number"),
        (one(values=["1.0d"], ty="DOUBLE"), "expected a finite decimal number"),
        (bytes.fromhex("0800120c08001201ff18002201762800"), "UTF-8"),
        (bytes.fromhex("0800120c080012016b18002201ff2800"), "UTF-8"),
        (b"\x00", "byte 1: no number of a field"),
        (b"\x80", "byte 1: no number of a field"),
        (b"\x08", "byte 1: field 1 is cut short"),
        (b"\x08\x80", "byte 1: field 1 is cut short"),
        (b"\x08" + b"\x80" * 10 + b"\x00", "byte 1: field 1 is cut short, or its number too long"),
        (b"\x08\x00\x12\x0c\x08", "byte 3: field 2 takes 12 bytes, but its message has 1 more"),
        (b"\x08\x00\x12\x05\x08\x00\x12\x09k", "byte 7: field 2 takes 9 bytes, but its message has 1 more"),
        (b"\x08\x00\x12\xff\xff\xff\xff\x0f", "byte 3: field 2 takes 4294967295 bytes"),
        (b"\x08\x00\x0b\x0c", "byte 3: field 1 has wire type 3"),
        (b"\x08\x00\x0e", "byte 3: field 1 has wire type 6"),
        (b"\x08\x00\x09\x00", "byte 3: field 1 takes 8 bytes, but its message has 1 more"),
        (b"\x0d\x00\x00\x00\x00", "ty: not known"),
        (b"type = 'order'", "byte "),
        (b"\x00" * MAX_BYTES, "byte 1"),
        (b"\x12" * (MAX_BYTES + 1), "longer than 1048576 bytes"),
    ],
)
def test_errors_say_where_and_why(encoded: bytes, reason: str) -> None:
    with pytest.raises(FilterError) as fault:
        from_protobuf(encoded)
    assert reason in fault.value.reason
    assert fault.value.column is None
    assert len(str(fault.value)) < 1_000


def nested(depth: int, inner: bytes = one(values=["v"])) -> bytes:
    """Return the bytes of that many NOTs around an Expr, with the proposal's field numbers."""
    encoded = inner
    for _ in range(depth):
        length = len(encoded)
        digits = bytearray()
        while length > 127:
            digits.append(length & 127 | 128)
            length >>= 7
        encoded = b"\x08\x03\x1a" + bytes([*digits, length]) + encoded
    return encoded


def test_nesting_beyond_the_limit_is_refused_whatever_its_depth() -> None:
    assert from_protobuf(nested(63)) == parse("NOT " * 63 + "k = 'v'")
    for depth in (64, MAX_NESTING - 1):
        with pytest.raises(FilterError, match="more than 64 levels deep"):
            from_protobuf(nested(depth))
    for depth in (MAX_NESTING, 1_000, 10_000):
        with pytest.raises(FilterError, match=r"byte \d+: messages nest more than 100 deep"):
            from_protobuf(nested(depth))


def test_a_chain_that_leans_to_one_side_is_read_as_far_as_protobuf_nests() -> None:
    """The proposal's builder makes such chains; the flattened tree is no deeper for it."""
    chain = K
    for _ in range(MAX_NESTING - 2):
        chain = Expr(ty="OR", lhs=chain, rhs=K)
    read = from_protobuf(chain.SerializeToString())
    assert read == any_of([parse("k = 'v'")] * (MAX_NESTING - 1))
    assert from_protobuf(to_protobuf(read)) == read


def test_as_many_parts_as_are_allowed_are_written_and_read() -> None:
    expression = any_of(parse(f"k = {number}") for number in range(MAX_NODES - 1))
    assert from_protobuf(to_protobuf(expression)) == expression
    reader = Expr.FromString(to_protobuf(expression))
    depth = 0
    while reader.HasField("lhs"):
        reader, depth = reader.lhs, depth + 1
    assert depth <= 10, "balanced"


def test_the_largest_of_texts_are_written_and_read() -> None:
    faces = "\U0001f600" * 131_071
    expression = parse(f"k = '{faces}'")
    assert from_protobuf(to_protobuf(expression)) == expression


def test_what_nests_deeper_as_messages_than_messages_may_is_refused() -> None:
    tree: Expression = parse("a = 1")
    for number in range(31):
        tree = any_of([*(parse(f"b = {n}") for n in range(7)), all_of([parse(f"c = {number}"), tree])])
    with pytest.raises(FilterError, match="nested too deep for the protobuf form"):
        to_protobuf(tree)


def test_what_is_not_allowed_is_not_written() -> None:
    with pytest.raises(FilterError, match="more than 64 levels"):
        to_protobuf(negate(parse("NOT " * 63 + "a = 1")))


@pytest.mark.parametrize("reference", ["key", "partition", "offset", "body_size"])
def test_references_of_ours_are_refused_by_readers_that_know_the_proposal_only(reference: str) -> None:
    encoded = to_protobuf(parse(f"{reference} = 5"))
    assert from_protobuf(encoded) == parse(f"{reference} = 5")
    assert Expr.FromString(encoded).FindInitializationErrors() == ["predicate.ref"]
