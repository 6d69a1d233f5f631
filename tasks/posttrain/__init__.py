"""What `sft` and `dpo` share: TRL's trainers in a child process, with exact resume.

config.py    what both say in a profile
spec.py      what the child is told
rows.py      reading pairs, rendering them with the one chat template, dropping what can't be used
callback.py  the log, progress and whole checkpoints
train.py     the child
stage.py     the stage's side: starts the child, draws the curve, reports
"""
