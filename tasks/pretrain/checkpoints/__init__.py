"""Checkpoints: whole or not there, read back before they count, with room on the disk.

manager.py       atomic checkpoints and exact resume
saved_states.py  what their files hold, read back
background.py    saving while training goes on
snapshots.py     models kept along the way
disk.py          room for all of it
"""
