"""Checks: what was looked at, how it is, and what to do about it.

check.py         one check
installation.py  those of an installation
extras.py        the extras, and which stage needs which
quiet.py         settings by which libraries send nothing anywhere
dependencies.py  what the installation consists of: versions, licences, who requires what
"""
