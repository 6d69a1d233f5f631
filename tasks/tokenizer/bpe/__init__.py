"""Byte-level BPE training from counted pre-tokens: the same merges as `tokenizers`, in a fraction of the time."""
