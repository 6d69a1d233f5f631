"""What a training step sees: a pure function of the step's number, for any number of processes.

permutation.py  a random order that is computed, not stored
windows.py      windows of a token stream, shuffled
packing.py      whole documents packed into windows, so that few are cut
mixture.py      windows of several sources, weighed; weights that change
batch.py        shorter rows; documents that don't see each other; tokens not to be predicted
fim.py          documents rearranged, so that the model learns to fill in the middle
steps.py        the micro-batches of a step and rank
prefetch.py     work done ahead in a thread
"""

from tasks.pretrain.loader.batch import Batch
from tasks.pretrain.loader.mixture import MixtureLoader, Phase
from tasks.pretrain.loader.permutation import permute
from tasks.pretrain.loader.prefetch import ahead
from tasks.pretrain.loader.steps import StepLoader, open_loader
from tasks.pretrain.loader.windows import WindowLoader

__all__ = ["Batch", "MixtureLoader", "Phase", "StepLoader", "WindowLoader", "ahead", "open_loader", "permute"]
