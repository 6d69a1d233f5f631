"""Children forked from a process that has imported their libraries: a child on a CPU spends five to ten seconds of
processor time on its imports, often more than on its work.

server.py     imports, and forks
processes.py  the stage's side: a server for each environment, and its children
"""
