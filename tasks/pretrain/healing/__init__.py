"""Recovery of a run after a fault.

policy.py           decides what to do about a fault
supervisor.py       runs the child and restarts it
divergence.py       detects NaN and loss spikes
skipped_batches.py  batches that a recovered run skips, learning rates that it lowers
heartbeat.py        distinguishes a slow process from a hanging one

tasks/training/recovery/ recognises lack of memory, and injects faults for drills.
"""
