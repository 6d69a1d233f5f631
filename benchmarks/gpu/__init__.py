"""What the model half does on a GPU: is it right, and how fast is it.

__main__.py    the command: sections in turn, each until its share of the time is over
bench.py       what the sections share: device, time left, data, results
results.py     a row for each measurement, written as soon as it is measured
tokens.py      token shards and a tokenizer, from the text of this tree
sizes.py       the models, and the same command's models for a CPU
tests.py       section: the tests that need a GPU
speed.py       section: training beside peers, and the memory and time that `plan` says
attention.py   section: attention kernels
generation.py  section: sampling
posttrain.py   section: SFT and DPO
models.py      the base model of these two
pack.sh        the wheels that a machine without network lacks, listed in requirements.txt
"""
