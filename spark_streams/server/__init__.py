"""The server of the reference log: its doors, one for each protocol, on one asyncio loop in one thread."""

from spark_streams.server.amqp.config import AmqpConfig, Redirect
from spark_streams.server.event_hubs.config import EventHubsConfig
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.http.config import BearerToken
from spark_streams.server.log_server import LogServer
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.server.thread import ServerThread
from spark_streams.server.users import Permissions
from spark_streams.server.web.config import WebConfig

__all__ = [
    "AmqpConfig",
    "BearerToken",
    "EventHubsConfig",
    "FeedConfig",
    "LogServer",
    "Permissions",
    "RabbitConfig",
    "Redirect",
    "ServerThread",
    "WebConfig",
]
