"""The `pretrain` stage: trains a transformer on token shards, in child processes.

config.py      the pretraining section of a profile
stage.py       the stage: starts the children, plots the loss curve, reports
check.py       refuses settings that the engine or this machine does not support
spec.py        the input of the children, and the identity that a resume must match
setup.py       how the run is spread over its devices, for estimates of memory and disk
train.py       the child: sets everything up, saves the model
loop.py        the training loop
log.py         the measurements of each step
world.py       the processes: how they join and leave
averages.py    averages of the weights
evaluation.py  validation loss, losses of single rows, samples
long_context/  a context above the base's, and what it brings
fim_tokens.py  ids of the special tokens of fill-in-the-middle
recipe/        optimizer, learning rate, batch size, precision
loader/        samples in an order that follows from the seed, by source and by document
engines/       how a model is trained by one process or many
checkpoints/   atomic checkpoints, exact resume, snapshots, disk space
healing/       recovery from divergence, lack of memory and lost processes
preflight/     checks before a long run: can it learn, does it fit, does it resume
insight/       speed, layer statistics, live curve: none of it in the artifact
"""

from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.stage import pretrain

__all__ = ["PretrainConfig", "pretrain"]
