"""Processes that train: started, supervised, and never outliving their stage.

supervise.py    the stage's side: runs a child to its end, whatever that is
kept.py         batches of rows that a child keeps as it goes
child.py        the child's side: what it reports
orderly_stop.py what a training does when it is asked to end
parent.py       a process that ends with its parent
environment.py  what must be set before Python starts
devices.py     which device, and whether this machine can have it
launchers.py    the command that starts the processes, on one host or many
join.py         how a further host takes part
spec.py         what a child is told
"""
