"""A query's progress: what its sources report, and a listener for it."""
