"""The commands of `gristmill serve`.

keys.py     make, list and revoke keys
"""
