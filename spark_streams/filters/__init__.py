"""Filters over events: what a peer sends, as predicates that are evaluated in columns."""
