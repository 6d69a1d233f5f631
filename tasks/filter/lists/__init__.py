"""Lists of the user: hosts, addresses and words that documents may not have."""
