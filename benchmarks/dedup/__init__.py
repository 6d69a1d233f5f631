"""Near-duplicate removal beside its peers: the same text, one core, a fresh process a run. See `__main__.py`."""
