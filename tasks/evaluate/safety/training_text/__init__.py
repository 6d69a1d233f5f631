"""Training text, beside what a model says.

openings.py  beginnings of documents, chosen by hash
matches.py   the longest pieces of texts that stand in the tokens
kernels.py   its loops, compiled
"""
