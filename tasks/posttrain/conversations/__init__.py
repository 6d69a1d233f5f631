"""What fine-tuning on conversations adds to TRL's trainer.

layout.py     which conversations lie in which row of which micro-batch
collate.py    rows as tensors
isolation.py  whether a model keeps conversations in one row apart, asked of the model itself
noise.py      NEFTune's noise
speed.py      tokens a second, and how many places of a batch are padding
trainer.py    the trainer that has all of these
divergence.py how far a student is from its teacher
"""
