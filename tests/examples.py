"""How many examples a property takes: all at night, when new ones are sought; by day a share, the same each time."""

from __future__ import annotations

from hypothesis import settings

BY_DAY = "ci"
"""The profile of `make test`: Hypothesis's own for CI, with fewer examples."""
SAME = "same"
"""The profile of `make mutation`: the examples of the night, the same ones each time."""


def examples(at_night: int) -> int:
    """How many of the `at_night` examples of a property the chosen profile takes: by day an eighth, but 25 at least."""
    by_day = settings.get_current_profile_name() == BY_DAY
    return max(min(at_night, 25), at_night // 8) if by_day else at_night


settings.register_profile(SAME, settings.get_profile(BY_DAY))
settings.register_profile(BY_DAY, settings.get_profile(BY_DAY), max_examples=25)
settings.register_profile("default", settings.get_profile("default"), deadline=None)  # a slow machine is no fault
