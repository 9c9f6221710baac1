"""The command, which pages show."""

from tests.cli.conftest import orders as orders
from tests.cli.conftest import run as run
from tests.cli.conftest import serve as serve
