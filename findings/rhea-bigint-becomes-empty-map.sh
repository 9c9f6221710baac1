#!/usr/bin/env bash
# One would guess: a BigInt in JavaScript, the one type that holds every AMQP long, is written as a long, or refused.
# What happens: rhea 3.0.5, on which Microsoft's @azure/event-hubs and @azure/service-bus rest, writes it as an empty map
# (d1 with no items) without an error, in application properties and as a body: the number is gone. NaN becomes null,
# where Python's clients write the double NaN.
# Source: npm rhea 3.0.5, lib/types.js (from_type, what is an object is a map).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . rhea@3.0.5 >npm.out 2>&1 || { cat npm.out; exit 1; }
cat >seen.js <<'JS'
const { message } = require('rhea');
console.log('rhea', require('rhea/package.json').version);
const value = (v) => message.encode({ body: v }).toString('hex').slice('0053704500537345005377'.length);
for (const v of [10, 10n, 2n ** 53n + 1n, NaN, 1.5]) {
  console.log(String(v), typeof v, value(v));
}
JS
node seen.js | tee seen.txt
diff seen.txt - <<'EXPECTED' && echo "as described"
rhea 3.0.5
10 number 520a
10 bigint d10000000400000000
9007199254740993 bigint d10000000400000000
NaN number 40
1.5 number 823ff8000000000000
EXPECTED
