"""Whether an export computes what its checkpoint does, in the runtime that it is for, before publication (law 7).

texts.py      the strings and conversations that every format must encode alike
held_out.py   held-out text: some to calibrate on, other text to prove on
reference.py  the checkpoint's answers
compare.py    a format's answers beside them
config.py     its config beside the checkpoint's
weights.py    its matrices beside the checkpoint's
speed.py      tokens a second, and memory
judge.py      the limits
"""
