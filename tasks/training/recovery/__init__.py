"""What recovery from faults needs in any training.

out_of_memory.py       recognises lack of memory, and takes a batch in halves
less_memory.py         goes on with fewer rows at a time
lost_host.py           names the host whose connection was lost
dead_link.py           notices one that can't be reached any more
remote_checkpoints.py  keeps checkpoints in the store's bucket, for a machine that is lost
fault_injection.py     faults on purpose, to test recovery
"""
