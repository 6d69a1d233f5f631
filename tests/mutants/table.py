"""All defects, by what they break."""

from __future__ import annotations

from tests.mutants.aligned import ALIGNED
from tests.mutants.compared import COMPARED
from tests.mutants.data import DATA
from tests.mutants.guarded import GUARDED
from tests.mutants.ordered import ORDERED
from tests.mutants.released import RELEASED
from tests.mutants.served import SERVED
from tests.mutants.stored import STORED
from tests.mutants.training import TRAINING

MUTANTS = (*STORED, *DATA, *TRAINING, *ALIGNED, *RELEASED, *SERVED, *ORDERED, *GUARDED, *COMPARED)
