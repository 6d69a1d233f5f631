"""Additions to TRL's trainer for fine-tuning on conversations.

layout.py      which conversations are in which row of which micro-batch
collate.py     rows as tensors
noise.py       NEFTune's noise
speed.py       tokens a second, and the share of padding
trainer.py     the trainer with all of these
divergence.py  how far a student is from its teacher
"""
