"""Tokenization beside its peers: encoding, learning merges, and what the loader serves."""
