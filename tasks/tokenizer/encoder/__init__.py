"""Encoding documents by a trained tokenizer: compiled kernels, and the library that they must agree with."""
