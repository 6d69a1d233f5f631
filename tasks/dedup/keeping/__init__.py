"""Which document of a cluster is kept: the condition of its text, and the order of preference."""
