"""``python -m spark_streams.cli`` is the command ``spark-streams``."""

from spark_streams.cli.command import main

if __name__ == "__main__":
    main()
