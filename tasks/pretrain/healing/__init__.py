"""Healing: what becomes of a run after a fault.

policy.py           what to do about a fault
supervisor.py       the child watched, and started again
divergence.py       when a loss has left its course
skipped_batches.py  batches that a healed run leaves out, learning rates that it lowers
out_of_memory.py    how memory that ran out shows
heartbeat.py        signs of life
fault_injection.py  faults on purpose
"""
