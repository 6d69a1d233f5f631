"""Attention within rows that hold several conversations, or that several processes share.

apart.py      attention that keeps conversations in one row apart without a mask
isolation.py  sets it, and tests that a model keeps them apart
context.py    context parallelism: each process has a part of every row's tokens
"""
