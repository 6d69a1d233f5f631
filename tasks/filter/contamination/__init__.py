"""Benchmark questions that stand in the training documents, found by shared n-grams."""
