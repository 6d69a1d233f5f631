"""What every stage is: a function made cached, named, explained and shown.

decorator.py  @stage: a plain function becomes a cached Prefect task
session.py    the surroundings of a run
output.py     what a stage writes to: files, counts, tables, progress
config.py     the two halves of a profile, as types
source.py     the digest of a stage's source code
named.py      earlier artifacts that a config names
progress.py   what a running stage tells whoever watches
"""

from tasks.stage.decorator import stage

__all__ = ["stage"]
