"""Pushes a saved release, only on request and after a search of its files.

address.py   the addresses that it may go to
outgoing.py  the files that would go out, and findings in them that reveal their maker
secrets.py   passwords and tokens in its files
steps.py     the order of copying it to a folder, bucket or server
folder.py    a folder as destination
bucket.py    a bucket or a server as destination
hub.py       a repository of the hub as destination
send.py      to whichever of these an address names
"""
