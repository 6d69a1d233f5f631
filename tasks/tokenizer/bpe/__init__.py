"""Byte-level BPE learned from pre-tokens with their counts: the merges of `tokenizers`, in a fraction of its time."""
