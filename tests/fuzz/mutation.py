"""How valid bytes become invalid ones. All chance comes from the ``Random`` that is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63, 2**64 - 1)
CHUNKS = ("whole", "frames", "random", "bytes")

Resize = Callable[[bytearray], None]


def damaged(chance: Random, frame: bytes, nested: Sequence[bytes] = ()) -> bytes:
    """Return a frame with one to four changes.

    Args:
        chance: decides.
        frame: as it would be right.
        nested: what is deep, of this protocol.
    """
    content = bytearray(frame)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
        at = chance.randrange(len(content) + 1)
        kind = chance.randrange(10)
        if kind == 0 and content:
            content[min(at, len(content) - 1)] ^= 1 << chance.randrange(8)
        elif kind == 1 and content:
            content[min(at, len(content) - 1)] = chance.randrange(256)
        elif kind == 2:
            width = chance.choice((1, 2, 4, 8))
            number = (chance.choice(INTERESTING) + chance.choice((-1, 0, 0, 1))) % (1 << 8 * width)
            content[at : at + width] = number.to_bytes(width, chance.choice(("big", "big", "little")))
        elif kind == 3:
            del content[at:]
        elif kind == 4:
            del content[at : at + chance.randint(1, 16)]
        elif kind == 5:
            content[at:at] = chance.randbytes(chance.randint(1, 16))
        elif kind == 6:
            other = chance.randrange(len(content) + 1)
            content[at:at] = content[other : other + chance.randint(1, 64)]
        elif kind == 7 and nested:
            content[at:at] = chance.choice(nested)
        elif kind == 8:
            content[at:at] = content[at : at + chance.randint(1, 8)] * chance.choice((2, 10, 1_000))
        else:
            size = chance.randint(1, 8)
            content[at : at + size] = chance.choice((b"\0", b"\xff", b"\x80", b"\x7f")) * size
    return bytes(content)


def rearranged(chance: Random, frames: list[bytes], others: Sequence[bytes]) -> list[bytes]:
    """Return frames with one repeated, left out, moved, or put in from elsewhere."""
    frames = list(frames)
    at = chance.randrange(len(frames) + 1)
    kind = chance.randrange(5)
    if kind == 0 and frames:
        frames[at:at] = [chance.choice(frames)] * chance.choice((1, 2, 20))
    elif kind == 1 and frames:
        del frames[min(at, len(frames) - 1)]
    elif kind == 2 and len(frames) > 1:
        one, two = chance.sample(range(len(frames)), 2)
        frames[one], frames[two] = frames[two], frames[one]
    elif kind == 3 and others:
        frames[at:at] = [chance.choice(others)]
    else:
        frames[at:at] = [chance.randbytes(chance.randint(1, 200))]
    return frames


def chunked(chance: Random, frames: Sequence[bytes]) -> list[bytes]:
    """Return the same bytes, cut in another way."""
    every = b"".join(frames)
    way = chance.choice(CHUNKS)
    if way == "frames" and len(frames) <= 200:
        return [frame for frame in frames if frame]
    if way == "bytes" and len(every) <= 300:
        return [every[at : at + 1] for at in range(len(every))]
    if way == "random" and len(every) <= 100_000:
        cuts = sorted(chance.randrange(len(every) + 1) for _ in range(chance.randint(1, 12)))
        return [every[a:b] for a, b in zip([0, *cuts], [*cuts, len(every)], strict=True) if b > a]
    return [every] if every else []
