"""The data of a training step: a pure function of the step's number, for any number of processes.

permutation.py  pseudo-random order, computed and not stored
windows.py      windows of a token stream, shuffled
packing.py      whole documents packed into windows, so that few are cut
mixture.py      windows of several sources, by weights that may change
batch.py        shorter rows, isolated documents, ignored targets
fim.py          fill-in-the-middle
steps.py        the micro-batches of a step and rank
prefetch.py     prefetching in a thread
"""

from tasks.pretrain.loader.batch import Batch
from tasks.pretrain.loader.mixture import MixtureLoader, Phase
from tasks.pretrain.loader.permutation import permute
from tasks.pretrain.loader.prefetch import compute_ahead
from tasks.pretrain.loader.steps import StepLoader, open_loader
from tasks.pretrain.loader.windows import WindowLoader

__all__ = ["Batch", "MixtureLoader", "Phase", "StepLoader", "WindowLoader", "compute_ahead", "open_loader", "permute"]
