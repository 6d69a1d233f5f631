"""Runs that are disturbed on purpose: killed, stopped, refused disk and network, at every point where a store commits.

`python -m tests.faults` is the storm; see storm.py.
"""
