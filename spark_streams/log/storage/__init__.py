"""The files of a partition: segments, their indexes, and how they are recovered."""
