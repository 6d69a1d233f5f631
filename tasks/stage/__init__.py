"""The machinery of every stage: a function becomes cached, named, explained and shown.

decorator.py    @stage: a plain function becomes a cached stage
identity.py     what a stage declares, and the key of what it makes
making.py       takes an artifact from the store, or makes it
as_task.py      a stage as a Prefect task
session.py      the surroundings of a run
output.py       a stage's files, counts, tables and progress
config.py       the half of a profile that enters keys
runtime.py      the half that never does
machine/        the cores and the memory that a process may use, and the energy that the host uses
source.py       the digest of a stage's source code
history.py      what a stage made before
user_function.py   a user's own Python function, its digest and how it is loaded
named_artifact.py  earlier artifacts that a config names
environment.py  where an artifact was made
display/        progress, tables, figures, and a page in Prefect
protocol.py     what session and output need to know of a stage
"""

from tasks.stage.decorator import stage

__all__ = ["stage"]
