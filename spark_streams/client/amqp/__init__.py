"""Holds the client of AMQP 1.0 event streams.

Nothing here works without python-qpid-proton, of which other formats need nothing (docs/adr/0050-proton-stays.md).

Raises:
    PackageMissing: it is not installed.
"""

from importlib.util import find_spec

from spark_streams.errors import PackageMissing

if find_spec("proton") is None:
    raise PackageMissing(
        "AMQP needs python-qpid-proton, which is not installed: pip install python-qpid-proton, which compiles it and "
        "needs a C compiler and Python's headers"
    )
