"""Checkpoints: atomic, read back before they count, with disk space checked beforehand.

manager.py       atomic checkpoints and exact resume
saved_states.py  reads back what files hold
snapshots.py     models kept along the way
disk.py          disk space
"""
