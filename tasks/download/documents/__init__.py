"""Documents: a file, or a message of a mailbox, as one.

read.py      what came of every document
licences.py  the licence of source code, from the files beside it
"""
