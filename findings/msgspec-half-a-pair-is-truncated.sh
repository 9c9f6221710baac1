#!/usr/bin/env bash
# One would guess: a JSON reader that skips a member, or cuts it out as raw bytes, takes every text of RFC 8259's grammar
# there, as it makes no string of it; and one that does look inside looks at its bytes too.
# What happens: msgspec 0.23.0 (0.19.0 as well) refuses half of a surrogate pair, "\ud800", which the grammar allows
# (RFC 8259 §8.2), also in a member that nobody asked for, and says "Input data was truncated" of a whole document.
# JavaScript's JSON.stringify has written such escapes on purpose since ES2019, for strings cut in the middle of a pair.
# One line of NDJSON like that fails the whole call of decode_lines. Python's json reads it; orjson refuses it too, but
# names what it is and where.
# Source: PyPI msgspec 0.23.0 and 0.19.0, orjson 3.13.0; RFC 8259 §7, §8.2; ECMA-262, QuoteJSONString.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check msgspec==0.23.0 orjson==3.13.0
python/bin/python - <<'PY' | tee seen.txt
import json
from importlib.metadata import version

import msgspec
import orjson

print("msgspec", version("msgspec"), "orjson", version("orjson"))


class Line(msgspec.Struct):
    cursor: str = ""
    event: msgspec.Raw = msgspec.Raw(b"")


def told(read, text):
    try:
        return read(text)
    except ValueError as error:
        return f"{type(error).__name__}: {str(error)[:45].strip()}"


whole = rb'{"cursor":"c","other":"\ud83d"}'
print("json:", told(json.loads, whole))
print("orjson:", told(orjson.loads, whole))
print("msgspec, skipped:", told(msgspec.json.Decoder(Line).decode, whole))
print("msgspec, raw:", told(msgspec.json.Decoder(Line).decode, whole.replace(b"other", b"event")))
print("msgspec, lines:", told(msgspec.json.Decoder(Line).decode_lines, b'{"cursor":"a"}\n' + whole))
print("msgspec, a pair:", told(msgspec.json.Decoder(Line).decode, rb'{"cursor":"c","other":"\ud83d\ude00"}').cursor)
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
msgspec 0.23.0 orjson 3.13.0
json: {'cursor': 'c', 'other': '\ud83d'}
orjson: JSONDecodeError: no low surrogate in string: line 1 column 24
msgspec, skipped: DecodeError: Input data was truncated
msgspec, raw: DecodeError: Input data was truncated
msgspec, lines: DecodeError: Input data was truncated
msgspec, a pair: c
EXPECTED
