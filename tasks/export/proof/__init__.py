"""Proves, before publication, that an export computes the same as its checkpoint in the runtime that it is for (law 7).

reference.py    the checkpoint's answers, and the texts that every format must encode alike
held_out.py     held-out text: some to calibrate on, other text to prove on
compare.py      compares a format's answers with the reference
config.py       compares its config with the checkpoint's
weights.py      compares its matrices with the checkpoint's
speed.py        tokens per second, and memory
probes.py       the likeliest next tokens, for servers to compare themselves with
speculation.py  how often a release's guesses are right, and that they change no text
judge.py        the limits
"""
