"""What recovery from faults needs in any training.

out_of_memory.py    recognises lack of memory, and takes a batch in halves
less_memory.py      goes on with fewer rows at a time
fault_injection.py  faults on purpose, to test recovery
"""
