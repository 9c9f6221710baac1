"""Helpers for users' tests of pipelines: the reference log in its own process, so that a CI needs no broker.

With pytest there is nothing to set up: the package has a plugin whose fixture ``reference_log`` makes streams.
"""

from spark_streams.testing.log_process import LogProcess
from spark_streams.testing.notebook import Notebook
from spark_streams.testing.query import KeptQuery, eventually, wait_until_caught_up
from spark_streams.testing.stream import LogStream, StreamFactory

__all__ = ["KeptQuery", "LogProcess", "LogStream", "Notebook", "StreamFactory", "eventually", "wait_until_caught_up"]
