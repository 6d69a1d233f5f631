"""`gristmill serve`: a release behind a server, and the commands around it.

audit.py    filters the audit log
status.py   shows what a running server does
"""
