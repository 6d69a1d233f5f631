"""A saved release goes out, on request alone and after a look at what would go.

address.py   where it may go
outgoing.py  what would go out, and what in it had better not
secrets.py   passwords and tokens in its files
steps.py     the order in which it gets to a place of files
folder.py    a folder as such a place
bucket.py    a bucket or a server as such a place
hub.py       to a repository of the hub
send.py      to whichever of these an address names
"""
