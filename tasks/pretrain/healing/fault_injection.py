"""Faults on purpose: a drill that shows whether a run heals itself on this cluster.

The environment variable GRISTMILL_DRILL names what shall happen, at which step, and where it matters on which rank:

    GRISTMILL_DRILL=oom@5,hang:1@20,kill:1@30,nan@40 gristmill run …

    nan@40      the loss of step 40 is multiplied by NaN before the backward pass, so that all weights become NaN
    spike@40    step 40 is taken with 1,000 times the learning rate, which ruins the weights: the loss rises, finite
    oom@5       memory is asked for that no machine has (on the rank that is named, else on the first)
    kill:1@30   rank 1 is killed by SIGKILL before step 30, as by a machine that fails
    hang:1@20   rank 1 sleeps from step 20 on, and the others wait for it, until runtime.pretrain.hang_minutes are over
    full@20     from step 20 on no file may grow beyond 64 kB, as on a full disk: the next checkpoint fails

Each happens once: a mark in the scratch folder, written before it happens, keeps the restarted run from meeting it
again. With an exclamation mark (nan@40!) it happens whenever the step comes. Only the training children read the
variable; on hosts that join a rendezvous it must be set too. A healed drill ends with the stage's table "Events"; a nan
or a spike changes the weights, so run it on a profile of its own.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from storage.errors import ConfigError
from tasks.pretrain.world import World

VARIABLE = "GRISTMILL_DRILL"
KINDS = ("nan", "spike", "oom", "kill", "hang", "full")
FORM = re.compile(rf"({'|'.join(KINDS)})(?::(\d+))?@(\d+)(!?)")
TOO_MUCH = 1 << 50  # bytes; more than an address space holds
LARGEST_FILE = 1 << 16  # bytes, where the disk is full
RUINOUS = 1000.0  # times the learning rate


@dataclass(frozen=True)
class Drill:
    """One fault: `name` is how it was written."""

    name: str
    kind: str
    rank: int
    step: int
    always: bool


def parse(text: str) -> list[Drill]:
    """The faults that a value of GRISTMILL_DRILL names. Raises ConfigError for what it doesn't understand."""
    drills = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        found = FORM.fullmatch(name)
        if found is None:
            raise ConfigError(
                f"{VARIABLE} names {name!r}.", f"Write KIND@STEP or KIND:RANK@STEP; KIND is one of {', '.join(KINDS)}."
            )
        kind, rank, step, always = found.groups()
        drills.append(Drill(name, kind, int(rank or 0), int(step), bool(always)))
    return drills


@dataclass
class Drills:
    """The faults of this rank that have not happened yet. Open it before the ranks part: marks are read once."""

    folder: Path
    world: World
    waiting: list[Drill] = field(init=False)

    def __post_init__(self) -> None:
        named = parse(os.environ.get(VARIABLE, ""))
        self.waiting = [drill for drill in named if drill.always or not (self.folder / drill.name).exists()]

    @contextmanager
    def at(self, step: int, rate: float) -> Iterator[float]:
        """What happens at a step, around it; the learning rate to take it with."""
        planted: list[Callable[[], None]] = []
        for drill in [drill for drill in self.waiting if drill.step == step]:
            self.waiting.remove(drill)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / drill.name).touch()
            if drill.kind == "spike":
                rate *= RUINOUS
            elif drill.kind == "nan":
                planted.append(_plant_nan(drill))
            elif drill.rank == self.world.rank:
                _strike(drill.kind, self.world.device)
        yield rate
        for check in planted:
            check()


def _strike(kind: str, device: torch.device) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "oom":
        torch.empty(TOO_MUCH, dtype=torch.uint8, device=device)
    elif kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    while kind == "hang":
        time.sleep(60)


def _plant_nan(drill: Drill) -> Callable[[], None]:
    """From now on losses are NaN: what a module of any engine gives as a single number. What it returns ends that."""
    met: list[nn.Module] = []

    def spoil(module: nn.Module, _: object, output: object) -> Any:
        if not isinstance(output, Tensor) or output.ndim or not output.requires_grad:
            return None
        met.append(module)
        return output * float("nan")

    hook = register_module_forward_hook(spoil)

    def check() -> None:
        hook.remove()
        if not met:
            raise ConfigError(f"{drill.name}: this engine computes its loss outside of modules.", "Drill `spike`.")

    return check
