"""Cases for the Event Hubs door: what Microsoft's SDK said, damaged, and conversations whose links are as they may be.

Each frame is what a client could say at its place: handles, delivery-ids and credit fit, and the door comes to what is
inside: addresses, selectors, epochs, batches, requests and tokens, of which each may be anything.
"""

from __future__ import annotations

import struct
from random import Random

from spark_streams.wire.amqp.shared_access import SharedAccessSignature
from tests.fuzz import amqp_cases as amqp
from tests.fuzz.amqp_cases import anything, described, frame, listed, mapped, string, symbol

NESTED = (
    *amqp.NESTED,
    b"\x00\x53\x75\xa0\x00" * 300,
    b"\x00\x53\x75\xa0\x03\x00\x53\x75" * 300,
    b"\x00\x53\x75\xb0\xff\xff\xff\xff",
    b"\x00\x53\x75\xb0\x7f\xff\xff\xff",
)
SIGNED_IN = amqp.SIGNED_IN
illegal = amqp.illegal
sized = amqp.sized
opening = amqp.opening

BATCH_FORMAT = 0x80013700
FRAME_BYTES = 60_000
NULL, TRUE, FALSE, ZERO = b"\x40", b"\x41", b"\x42", b"\x43"
SAS_TYPE = "servicebus.windows.net:sastoken"
CENTURY_S = 4_102_444_800
"""The year 2100: a token of a case is the same whenever it is made."""
HUBS = ("orders", "many", "created", "ORDERS", "nobody", "%6frders", "or/ders", "", "\0", "o" * 300)
PARTITIONS = ("0", "1", "9", "-1", "", "00", "x", "9" * 300, "\ud7ff")
GROUPS = ("$Default", "$default", "g", "", "g/h", "\0", "g" * 300)
READABLE = "many/ConsumerGroups/$Default/Partitions/1"
KEYS = ("x-opt-offset", "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-none")
NUMBERS = ("-1", "0", "3", "@latest", "9" * 20, "9" * 5_000, "-" + "9" * 20, "1e3", "", "\u0664", "0" * 20, "--1", "+1")
SELECTORS = ("apache.org:selector-filter:string", "x")
CODES = (0x0000468C00000004, 0x000001370000000A, 0x201, 0)
URIS = (
    "sb://h/",
    "sb://h/orders",
    "sb://h/many",
    "amqps://h/ORDERS/ConsumerGroups/$Default",
    "orders",
    "",
    "//[",
    "sb://[::1/orders",
    "sb://h\u2100/orders",
    "\0",
    "sb://h/" + "a/" * 3_000,
)


def token(chance: Random) -> str:
    """Return a signature, now and then one that is none."""
    uri = chance.choice(URIS)
    expires_s = chance.choice((CENTURY_S, CENTURY_S, CENTURY_S, 0, 2**31, 2**63, 10**30, 10**400))
    signed = SharedAccessSignature.signed(uri, chance.choice(("guest", "guest", "", "x" * 300)), "guest", expires_s)
    kind = chance.randrange(12)
    if kind == 0:
        return signed.text.replace("sig=", "sig=%ff")
    if kind == 1:
        return signed.text.replace("se=", "se=" + "9" * 5_000)
    if kind == 2:
        return signed.text + "&sr=" * 2_000
    if kind == 3:
        return chance.choice(("", "SharedAccessSignature ", "SharedAccessSignature sr=&sig=&se=&skn=", "%" * 3_000))
    return signed.text


def address(chance: Random) -> str:
    """Return an address of the door, mostly one that is served."""
    if chance.random() < 0.4:
        return chance.choice((READABLE, "orders", "many", "many/Partitions/1", "$management", "$cbs"))
    hub, group, partition = chance.choice(HUBS), chance.choice(GROUPS), chance.choice(PARTITIONS)
    return chance.choice(
        (
            "$CBS",
            "$management/x",
            f"sb://h/{hub}",
            hub,
            f"{hub}/Partitions/{partition}",
            f"{hub}/ConsumerGroups/{group}",
            f"{hub}/ConsumerGroups/{group}/Partitions/{partition}",
            f"amqps://h/{hub}/consumergroups/{group}/partitions/{partition}/",
            f"{hub}/Publishers/p",
            "://",
            "/" * 300,
            f"{hub}/ConsumerGroups/{group}" * 40,
        )
    )


def filters(chance: Random) -> bytes:
    """Return the filter of a source."""
    words = (
        f"amqp.annotation.{chance.choice(KEYS)} {chance.choice(('>', '>=', '=', '>' * 99))} '{chance.choice(NUMBERS)}'"
    )
    selector = chance.choice((words, words, words, words + " OR 1=1", " " * 5_000 + words, *amqp.SQL[:3]))
    name = symbol(chance.choice(SELECTORS))
    descriptor = chance.choice((name, name, b"\x80" + struct.pack(">Q", chance.choice(CODES)), anything(chance)))
    value = string(selector) if chance.random() < 0.9 else anything(chance)
    pairs = [name, b"\x00" + descriptor + value] * chance.choice((0, 1, 1, 1, 1, 1, 2))
    return mapped(pairs) if chance.random() < 0.95 else anything(chance)


def link_properties(chance: Random) -> bytes:
    epoch = b"\x81" + struct.pack(">q", chance.choice((0, 1, 7, -1, 2**63 - 1)))
    entries = {
        "com.microsoft:epoch": chance.choice((epoch, epoch, epoch, anything(chance))),
        "com.microsoft:receiver-name": chance.choice((string("r"), string("r" * 5_000), anything(chance))),
        "com.microsoft:timeout": b"\x81" + struct.pack(">q", 60_000),
    }
    chosen = [each for each in entries.items() if chance.random() < 0.4]
    return mapped([part for name, value in chosen for part in (symbol(name), value)])


def message(chance: Random) -> bytes:
    """Return a message as events are."""
    if chance.random() < 0.2:
        return amqp.message(chance)
    key = string(chance.choice(("k", "", "k" * 300, "\ud7ff"))) if chance.random() < 0.9 else anything(chance)
    names = chance.choices(("x-opt-partition-key", "event-streams-group-key", "x-opt-offset", "x-own"), k=2)
    annotations = b"\x00\x53\x72" + mapped([part for name in names for part in (symbol(name), key)])
    header = b"\x00\x53\x70" + listed([TRUE])
    body = chance.choice((b"\x00\x53\x75\xa0\x03abc", b"\x00\x53\x77" + anything(chance), b""))
    return b"".join(part for part in (header, annotations) if chance.random() < 0.5) + body


def data(content: bytes) -> bytes:
    """Return a data section."""
    if len(content) < 256:
        return b"\x00\x53\x75\xa0" + bytes([len(content)]) + content
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(content)) + content


def batch(chance: Random) -> bytes:
    """Return a batch of events, good, broken, nested, or of many that are tiny."""
    kind = chance.randrange(20)
    head = message(chance)[: chance.choice((0, 0, 0, 40))]
    if kind == 0:
        tiny = chance.choice((b"", b"\x00\x53\x75\xa0\x00", b"\x00", b"\x00\x53\x77\x40"))
        return head + data(tiny) * chance.choice((17, 3_000, 30_000))
    if kind == 1:
        events = [message(chance) for _ in range(chance.choice((3, 20)))] * chance.choice((1, 100))
        return head + b"".join(map(data, events))
    if kind < 4:
        nested = message(chance)
        for _ in range(chance.choice((1, 2, 300))):
            nested = data(nested)
        return head + nested
    events = [message(chance) for _ in range(chance.choice((0, 1, 1, 2, 5)))]
    if kind < 8:
        events = [chance.choice((b"", chance.randbytes(9), anything(chance), data(each) * 2)) for each in events]
    footer = b"\x00\x53\x78" + mapped([])
    return head + b"".join(map(data, events)) + (footer if chance.random() < 0.1 else b"")


def request(chance: Random, to: str) -> bytes:
    """Return a request to ``$cbs`` or to ``$management``."""
    number = chance.randrange(9)
    message_id = chance.choice((string("r-1"), b"\x98" + b"u" * 16, b"\x80" + bytes(8), b"\xa0\x02\0\xff"))
    if number == 0:
        message_id = chance.choice((NULL, anything(chance), string("i" * 50_000)))
    reply_to = string(chance.choice(("l0", "l1", "$cbs", "x")))
    named: dict[str, bytes] = {"name": string(chance.choice(HUBS)), "partition": string(chance.choice(PARTITIONS))}
    if to == "$cbs":
        named["operation"] = string(chance.choice(("put-token", "put-token", "put-token", "delete-token", "")))
        named["type"] = string(chance.choice((SAS_TYPE, SAS_TYPE, SAS_TYPE, "jwt", "t" * 500)))
        body = string(token(chance))
    else:
        named["operation"] = string(chance.choice(("READ", "READ", "READ", "WRITE")))
        named["type"] = string(
            "com.microsoft:" + chance.choice(("eventhub", "partition", "partition", "consumergroup"))
        )
        if chance.random() < 0.3:
            named["security_token"] = string(token(chance))
        body = NULL
    entries: list[bytes] = []
    for name, value in named.items():
        if chance.random() < 0.95:
            odd = chance.random() < 0.08
            entries += [chance.choice((string, symbol))(name), anything(chance) if odd else value]
    sections = {
        0x73: listed([message_id, NULL, NULL, NULL, reply_to]),
        0x74: mapped(entries),
        0x77: body if chance.random() < 0.9 else anything(chance),
    }
    kept = {code: anything(chance) if chance.random() < 0.04 else value for code, value in sections.items()}
    return b"".join(b"\x00\x53" + bytes([code]) + value for code, value in kept.items() if chance.random() < 0.95)


def number(value: int) -> bytes:
    return b"\x70" + struct.pack(">I", value % 2**32)


def body(code: int, *fields: bytes) -> bytes:
    return b"\x00\x53" + bytes([code]) + listed(list(fields))


class Talk:
    """A conversation with one session, whose numbers fit.

    Args:
        chance: decides.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._sending: dict[int, str] = {}
        self._receiving: list[int] = []
        self._handles = 0
        self._deliveries = 0
        self.frames = opening()
        way = chance.choice(("PLAIN", "PLAIN", "ANONYMOUS", "MSSBCBS", ""))
        if way != "PLAIN":
            init = b"\x00\x53\x41" + listed([symbol(way), NULL, string("h")])
            self.frames[:2] = [amqp.SASL, struct.pack(">IBBH", len(init) + 8, 2, 1, 0) + init] if way else []

    def attach(self, where: str, *, receives: bool) -> int:
        """Attach a link."""
        chance, handle = self._chance, self._handles
        self._handles += 1
        own = string(f"l{handle}")
        terminus = [string(where) if chance.random() < 0.97 else anything(chance), *[NULL] * 6]
        source = described(0x28, listed([*terminus, filters(chance)] if receives else [own]))
        target = described(0x29, listed([own] if receives else terminus))
        capabilities = symbol("com.microsoft:enable-receiver-runtime-metric")
        desired = chance.choice(
            (NULL, capabilities, b"\xf0" + struct.pack(">II", 4 + len(capabilities), 1) + capabilities)
        )
        if receives:
            self._receiving.append(handle)
        else:
            self._sending[handle] = where
        mode = chance.choice((NULL, NULL, b"\x50\x01", b"\x50\x00"))
        fields = [own, number(handle), TRUE if receives else FALSE, mode, NULL, source, target]
        fields += [NULL, NULL, NULL if receives else ZERO, b"\x44", NULL, desired, link_properties(chance)]
        self.frames.append(frame(body(0x12, *fields)))
        return handle

    def transfer(self, handle: int, payload: bytes, format_code: int) -> None:
        """Send a message, in as many frames as it needs, or in a few more."""
        chance, settled = self._chance, chance_of(self._chance, 0.2)
        piece = chance.choice((FRAME_BYTES, FRAME_BYTES, max(1, len(payload) // 3)))
        pieces = [payload[at : at + piece] for at in range(0, len(payload), piece)] or [b""]
        for at, each in enumerate(pieces):
            more = at < len(pieces) - 1 or chance.random() < 0.01
            first = [number(self._deliveries), b"\xa0\x01a", number(format_code)] if not at else [NULL] * 3
            aborted = TRUE if chance.random() < 0.005 else FALSE
            fields = [number(handle), *first, settled, TRUE if more else FALSE, NULL, NULL, NULL, aborted]
            self.frames.append(frame(body(0x14, *fields) + each))
        self._deliveries += 1

    def flow(self, handle: int) -> None:
        """Give credit."""
        chance = self._chance
        credit, drain = number(chance.choice((0, 1, 10, 1_000, 2**31))), chance_of(chance, 0.2)
        window = number(chance.choice((0, 1, 2_000, 2_000)))
        self.frames.append(frame(body(0x13, ZERO, window, ZERO, window, number(handle), ZERO, credit, NULL, drain)))

    def step(self) -> None:
        """Say something that fits."""
        chance = self._chance
        kind = chance.randrange(20)
        if kind < 3:
            handle = self.attach(address(chance), receives=True)
            self.flow(handle)
        elif kind < 6:
            self.attach(address(chance), receives=False)
        elif kind < 14 and self._sending:
            handle, where = chance.choice(list(self._sending.items()))
            if where.lower() in ("$cbs", "$management") and chance.random() < 0.95:
                self.transfer(handle, request(chance, where.lower()), 0)
            elif chance.random() < 0.7:
                self.transfer(handle, batch(chance), BATCH_FORMAT)
            else:
                self.transfer(handle, message(chance), chance.choice((0, 0, 0, 1, BATCH_FORMAT)))
        elif kind < 16 and self._receiving:
            self.flow(chance.choice(self._receiving))
        elif kind == 16 and self._receiving:
            outcome = described(chance.choice((0x23, 0x24, 0x25, 0x26, 0x27)), listed([]))
            last = number(chance.choice((0, 3, 2**31)))
            self.frames.append(frame(body(0x15, TRUE, ZERO, last, TRUE, outcome)))
        elif kind == 17 and self._handles:
            handle = chance.randrange(self._handles)
            self._sending.pop(handle, None)
            self.frames.append(frame(body(0x16, number(handle), TRUE)))
        elif kind == 18:
            self.frames.append(amqp.performative(chance))
        else:
            self.requests(chance.choice(("$cbs", "$management")))

    def requests(self, to: str) -> None:
        """Ask something, on links for that."""
        self.flow(self.attach(to, receives=True))
        handle = self.attach(to, receives=False)
        for _ in range(self._chance.choice((1, 1, 3, 60))):
            self.transfer(handle, request(self._chance, to), 0)


def chance_of(chance: Random, share: float) -> bytes:
    """Return true now and then, and false mostly."""
    return TRUE if chance.random() < share else FALSE


def grammar(chance: Random) -> list[bytes]:
    """Return a conversation that begins well, and goes on with anything that could follow."""
    talk = Talk(chance)
    if chance.random() < 0.7:
        talk.requests("$cbs")
    for _ in range(chance.randint(1, 14)):
        talk.step()
    return talk.frames
