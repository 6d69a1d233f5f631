"""Toxicity: a classifier's score of documents and of their worst paragraph."""
