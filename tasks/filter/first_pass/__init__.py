"""Signals that are measured last: only for the documents that pass the rules of all other families."""
