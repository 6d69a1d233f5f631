"""Fault injection: shows whether a run recovers on this cluster.

The environment variable GRISTMILL_FAULTS lists faults, each with its step and, if it matters, its rank:

    GRISTMILL_FAULTS=oom@5,hang:1@20,kill:1@30,nan@40 gristmill run …

    nan@40      multiply the loss of step 40 by NaN before the backward pass, so that all weights become NaN
    spike@40    take step 40 with 1,000 times the learning rate, so that the loss rises but stays finite
    oom@5       allocate more memory than any machine has (on the named rank, by default the first)
    kill:1@30   SIGKILL rank 1 before step 30, as when a machine fails
    hang:1@20   let rank 1 sleep from step 20 on, until runtime.pretrain.hang_minutes are over
    full@20     limit files to 64 kB from step 20 on, as on a full disk, so that the next checkpoint fails

Post-training knows oom, kill and full, each of them once in every stage.

Step 0 is the pre-flight's check of the memory. Each fault happens once: a file in the scratch folder, written before it
happens, keeps the restarted run from hitting it again. With an exclamation mark (nan@40!) it happens each time the step
comes. Only the training children read the variable, and it must also be set on hosts that join a rendezvous. The
stage's table "Events" lists recoveries. nan and spike change the weights, so use a separate profile for them.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from storage.errors import ConfigError

VARIABLE = "GRISTMILL_FAULTS"
KINDS = ("nan", "spike", "oom", "kill", "hang", "full")
FORM = re.compile(rf"({'|'.join(KINDS)})(?::([0-9]{{1,9}}))?@([0-9]{{1,9}})(!?)")
TOO_MUCH = 1 << 50  # bytes, more than an address space has
LARGEST_FILE = 1 << 16  # bytes that a full disk still takes
RUINOUS = 1000.0  # times the learning rate


@dataclass(frozen=True)
class InjectedFault:
    """One fault. `name` is its text in the variable."""

    name: str
    kind: str
    rank: int
    step: int
    always: bool


def parse_faults(text: str) -> list[InjectedFault]:
    """The faults in a value of GRISTMILL_FAULTS. Raises ConfigError for a malformed one."""
    faults = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        match = FORM.fullmatch(name)
        if match is None:
            raise ConfigError(
                f"{VARIABLE} has {name!r}.", f"Write KIND@STEP or KIND:RANK@STEP. KIND is one of {', '.join(KINDS)}."
            )
        kind, rank, step, always = match.groups()
        faults.append(InjectedFault(name, kind, int(rank or 0), int(step), bool(always)))
    return faults


@dataclass
class FaultInjection:
    """The faults that have not happened yet. Create it before any rank can reach one: the files are read only once."""

    folder: Path
    rank: int
    device: torch.device
    known: Collection[str] = KINDS
    waiting: list[InjectedFault] = field(init=False)

    def __post_init__(self) -> None:
        faults = parse_faults(os.environ.get(VARIABLE, ""))
        due = [fault for fault in faults if fault.always or not (self.folder / fault.name).exists()]
        self.waiting = [fault for fault in due if fault.kind in self.known]

    @contextmanager
    def at(self, step: int, rate: float) -> Iterator[float]:
        """Inject the faults of a step, which is taken in the block. Yields the learning rate to take it with."""
        planted: list[Callable[[], None]] = []
        for fault in [fault for fault in self.waiting if fault.step == step]:
            self.waiting.remove(fault)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / fault.name).touch()
            if fault.kind == "spike":
                rate *= RUINOUS
            elif fault.kind == "nan":
                planted.append(_plant_nan(fault))
            elif fault.rank == self.rank:
                _strike(fault.kind, self.device)
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


def _plant_nan(fault: InjectedFault) -> Callable[[], None]:
    """Make losses NaN from now on: in any engine, a loss is the scalar output of a module. The returned function ends
    that. It raises ConfigError if no module had such an output."""
    spoiled: list[nn.Module] = []

    def spoil(module: nn.Module, _: object, output: object) -> Any:
        if not isinstance(output, Tensor) or output.ndim or not output.requires_grad:
            return None
        spoiled.append(module)
        return output * float("nan")

    hook = register_module_forward_hook(spoil)

    def check() -> None:
        hook.remove()
        if not spoiled:
            raise ConfigError(f"{fault.name}: this engine computes its loss outside of modules.", "Use `spike`.")

    return check
