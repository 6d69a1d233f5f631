"""`gristmill chat`: a conversation with a release, or with the model of a running server.

start.py         one answer to stdout, or a conversation, by the command's options
conversation.py  the turns at a terminal, and the /commands
lines.py         what a person types, or a pipe sends
printing.py      an answer printed as it arrives
rows.py          conversations as rows of a file that `download` reads
"""
