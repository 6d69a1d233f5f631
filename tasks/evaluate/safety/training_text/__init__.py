"""Compares a model's texts with the training text.

openings.py  beginnings of documents, chosen by hash
matches.py   the longest pieces of texts that occur in the tokens
kernels.py   its loops, compiled
"""
