"""The node of the AMQP door's tests, which the client is tried against too."""

from tests.server.amqp.conftest import node as node
from tests.server.amqp.conftest import nodes as nodes
