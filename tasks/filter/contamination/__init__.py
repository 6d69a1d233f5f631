"""Benchmark questions in the training documents, found by shared n-grams."""
