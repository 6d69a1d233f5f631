"""A saved release goes out, on request alone and after a look at what would go.

outgoing.py  what would go out, and what in it had better not
bucket.py    to a folder or a bucket, read back
hub.py       to a repository of the hub
"""
