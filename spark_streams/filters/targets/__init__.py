"""The part of a filter that each kind of peer can check, in that peer's own form."""
