"""The user's lists: hosts, addresses and words that documents must not have."""
