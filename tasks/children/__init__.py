"""Processes that train: started, supervised, and never outliving their stage.

supervise.py    the stage's side: runs a child to its end, whatever that is
warm            children that are forks of a process which has imported what they need
run_many.py      many pieces of work in one child
child.py        the child's side: what it reports
orderly_stop.py what a training does when it is asked to end
die_with_parent.py       a process that ends with its parent
heartbeat.py        a process that ends with a stage on another host
reap_orphans.py    processes of libraries that would outlive theirs
environment.py  what must be set before Python starts
devices.py      which device, and whether this machine can have it
launchers.py    the command that starts the processes, on one host or many
ranks.py        those of one host
hosts.py        which hosts take part
join.py         how a further host takes part
spec.py         what a child is told
"""
