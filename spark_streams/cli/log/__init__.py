"""The commands ``spark-streams log …``, which serve, create, inspect, split and fill the streams of a reference log."""
