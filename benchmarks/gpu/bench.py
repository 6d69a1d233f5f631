"""What the sections share: the device, the time that is left, the data, and where results go."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import sizes
from benchmarks.gpu.results import Results
from benchmarks.gpu.tokens import make_tokens
from benchmarks.measure import ROOT, Failed, Late, measure
from benchmarks.pretrain.sizes import Size
from tasks.children.environment import training_environment
from tasks.stage import machine
from tasks.stage.runtime import ComputeRuntime


@dataclass
class Bench:
    """A run of the benchmark, which ends `seconds` after it began."""

    device: str
    tiny: bool
    seconds: float
    results: Results
    data: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the time is over."""
        return self.seconds - (time.monotonic() - self.began)

    @contextlib.contextmanager
    def until(self, seconds: float) -> Iterator[None]:
        """Within it, the time is over in so many seconds."""
        whole, self.seconds = self.seconds, time.monotonic() - self.began + seconds
        yield
        self.seconds = whole

    @property
    def threads(self) -> int:
        """Threads of a process on the CPU."""
        return 1 if self.tiny else machine.cores()

    @functools.cached_property
    def sizes(self) -> dict[str, Size]:
        """The models to train, by name."""
        return sizes.sizes(tiny=self.tiny)

    @functools.cached_property
    def tokens(self) -> tuple[Path, Path]:
        """Folders of the token shards and of their tokenizer."""
        tiny = self.tiny
        vocab, tokens = (sizes.TINY_VOCAB, sizes.TINY_TOKENS) if tiny else (sizes.VOCAB, sizes.TOKENS)
        return make_tokens(self.data / f"tokens-{vocab}", vocab=vocab, tokens=tokens)

    def describe(self) -> dict[str, str]:
        """The device and the software, for the first row."""
        import torch

        if self.device == "cuda":
            name = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
        else:
            name = f"CPU ({platform.machine()}), {self.threads} threads"
        return {"device": name, "torch": torch.__version__, "Python": platform.python_version()}

    def measured(self, section: str, what: str, module: str, argument: str) -> dict[str, Any] | None:
        """What a module of benchmarks/ printed, in a process of its own; None, noted, if it failed or time ran out."""
        if self.left <= 0:
            self.results.missed(section, what)
            return None
        print(f"{section}: {what}, {self.left:.0f} s left", file=sys.stderr, flush=True)
        compute = ComputeRuntime.model_validate({"device": self.device, "threads": self.threads})
        variables = {**training_environment(compute), "PYTHONPATH": self._path()}
        try:
            command = [sys.executable, "-m", f"benchmarks.{module}", argument]
            found: dict[str, Any] = measure(command, variables, seconds=self.left).result
        except Late:
            self.results.missed(section, what)
            return None
        except Failed as error:
            self.results.failure(section, f"{what}: {error}")
            return None
        return found

    def _path(self) -> str:
        """Where the tree lies, and what PYTHONPATH names besides: packages that were brought along."""
        return os.pathsep.join(filter(None, (str(ROOT.parent), os.environ.get("PYTHONPATH"))))
