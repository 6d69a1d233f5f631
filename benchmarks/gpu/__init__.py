"""What the model half does on a GPU: is it right, and how fast is it.

__main__.py    the command: sections in turn, each until its share of the time is over
bench.py       what the sections share: device, time left, data, results
shared.py      the process in which they measure: this side
worker.py      the same: its own side, a task at a time
state.py       what a task may leave behind there
machine.py     the first row
results.py     a row for each measurement, written as soon as it is measured
tokens.py      token shards and a tokenizer, from the text of this tree
sizes.py       the models, and the same command's models for a CPU
speed.py       sections: training beside peers, and the memory and time that `plan` says
posttrain.py   section: SFT and DPO
generation.py  section: sampling
models.py      the base model of these two
tests.py       section: the tests that need a GPU
attention.py   section: attention kernels
pack.sh        the wheels that a machine without network lacks, listed in requirements.txt
"""
