"""Processes that train: started, supervised, and never outliving their stage.

supervise.py        the stage's side: runs a child to its end, and turns every end into a result or an error
warm/               children forked from a process that has imported their libraries
run_many.py         many pieces of work in one child
child.py            the child's side: its reports
orderly_stop.py     ends a training after a step and a checkpoint
die_with_parent.py  ends a process with its parent
heartbeat.py        ends a process with its stage on another host
reap_orphans.py     ends processes of libraries that would outlive theirs
environment.py      variables that must be set before Python starts
devices.py          chooses a device, and checks that this machine has it
launchers.py        the command that starts the processes, on one host or many
ranks.py            the processes of one host
hosts.py            the hosts that take part
join.py             lets a further host take part
spec.py             the input of a child
"""
