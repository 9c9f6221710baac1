"""Reading: batch and stream readers, plans, and what a task reads."""
