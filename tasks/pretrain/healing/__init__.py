"""Recovery of a run after a fault.

policy.py           what to do about a fault
supervisor.py       runs the child and restarts it
divergence.py       detects NaN and loss spikes
skipped_batches.py  batches that a recovered run skips, learning rates that it lowers
heartbeat.py        tells a slow process from a hanging one

How lack of memory is recognised, and faults on purpose: tasks/training/recovery/
"""
