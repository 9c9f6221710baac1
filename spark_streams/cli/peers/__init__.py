"""The peers that commands speak with, in any of the three protocols, and the commands ``inspect`` and ``copy``."""
