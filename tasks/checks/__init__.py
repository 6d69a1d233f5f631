"""Checks: what was looked at, how it is, and what to do about it.

check.py         one check
installation.py  those of an installation
dependencies.py  what the installation consists of: versions, licences, who requires what
"""
