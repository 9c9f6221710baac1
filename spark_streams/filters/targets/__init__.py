"""What each kind of peer can check of a filter, and in what words it is asked to."""
