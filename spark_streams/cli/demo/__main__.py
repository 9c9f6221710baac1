"""What the demo's own process runs; ``spark-streams demo`` starts it in a folder that goes afterwards."""

import sys

from spark_streams.cli.demo.report import show

if __name__ == "__main__":
    sys.exit(show(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
