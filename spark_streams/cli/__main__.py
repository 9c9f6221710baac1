"""``python -m spark_streams.cli`` is the command ``spark-streams``."""

from spark_streams.cli import run

if __name__ == "__main__":
    run()
