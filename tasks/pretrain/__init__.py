"""The `pretrain` stage: a transformer learns the token shards, in child processes.

config.py       what a profile says
stage.py        the stage: starts the child, draws the curve, reports
spec.py         what the child is told, and the identity that a resume must match
train.py        the child: puts it all together, leaves the model
loop.py         the steps, and what happens between them
log.py          what each step measured
insight/        where the time goes, what the layers do, the live curve: nothing of it in the artifact
world.py        the processes: how they join and part
engines/        how a model is trained by one process or many
optimizers.py   AdamW, or Muon with it; rates by width (muP)
schedule.py     the learning rate of a step, and warmups by doubling
precision.py    the numbers that it computes in
marks.py        the special tokens of fill-in-the-middle, by their ids
loader/         samples in an order that only the seed decides, by source and by document
course.py       batches that a healed run leaves out, learning rates that it lowers
divergence.py   when a loss has left its course
healing.py      what to do about a fault
supervisor.py   the child watched, and started again
beat.py         signs of life
memory.py       how memory that ran out shows
drills.py       faults on purpose
kept.py         which checkpoints lie there
checkpoints.py  atomic checkpoints and exact resume
saved_states.py what a checkpoint's files hold, read back
background.py   saving while training goes on
snapshots.py    models kept along the way
disk.py         room for all of it
preflight/      whether a long run can learn, fits and resumes, before it begins
evaluation.py   validation loss, samples
"""

from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.stage import pretrain

__all__ = ["PretrainConfig", "pretrain"]
