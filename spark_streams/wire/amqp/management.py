"""The words of requests to ``$management``, an address of Event Hubs and of our log's AMQP door.

Event Hubs answers what its hubs hold; our door creates and deletes streams, an extension. The form is that of the draft
"AMQP Management Version 1.0": a request's application properties have ``operation``, ``type`` and ``name``, and a
reply's have a status code of HTTP.
"""

from __future__ import annotations

from typing import Final

MANAGEMENT: Final = "$management"
"""The address."""
CREATE: Final = "CREATE"
DELETE: Final = "DELETE"
READ: Final = "READ"
"""Operations."""
STREAM_TYPE: Final = "spark-streams:stream"
"""The type of what our door creates and deletes."""
PARTITIONS: Final = "partitions"
"""The number of partitions in the body of a request to create a stream."""
