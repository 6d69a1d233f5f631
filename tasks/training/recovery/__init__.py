"""Recovery from faults, for any training.

out_of_memory.py       recognises lack of memory, and processes a batch in halves
less_memory.py         resumes with fewer rows at a time
lost_host.py           names the host whose connection was lost
dead_link.py           notices a host that can't be reached any more
remote_checkpoints.py  keeps checkpoints in the store's bucket, in case a machine is lost
fault_injection.py     faults on purpose, to test recovery
"""
