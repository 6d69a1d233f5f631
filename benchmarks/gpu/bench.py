"""What the sections share: the device, the time that is left, the process that measures, the data, where results go."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import sizes
from benchmarks.gpu.results import Results
from benchmarks.gpu.shared import Shared
from benchmarks.gpu.tokens import make_tokens
from benchmarks.measure import ROOT, Failed, Late
from benchmarks.pretrain.sizes import Size
from tasks.children.environment import training_environment
from tasks.stage import machine
from tasks.stage.runtime import ComputeRuntime

ROW = 120.0  # seconds that a row may take: on a GPU most take 10 to 20, and the first of a large model compiles
START = (
    180.0  # that the process may take to say what machine this is: imports from a cold disk, and a first compilation
)


@dataclass
class Bench:
    """A run of the benchmark, which ends `seconds` after it began."""

    device: str
    tiny: bool
    seconds: float
    results: Results
    data: Path
    began: float = field(default_factory=time.monotonic)
    gpu: str | None = None  # its name
    steps: dict[tuple[str, str, str], float] = field(default_factory=dict)  # seconds, by size, family and side

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
        vocab, tokens = (sizes.TINY_VOCAB, sizes.TINY_TOKENS) if self.tiny else (sizes.VOCAB, sizes.TOKENS)
        return make_tokens(self.data / f"tokens-{vocab}", vocab=vocab, tokens=tokens)

    @functools.cached_property
    def shared(self) -> Shared:
        """The process that measures."""
        compute = ComputeRuntime.model_validate({"device": self.device, "threads": self.threads})
        return Shared({**training_environment(compute), "PYTHONPATH": self._path()})

    def keep_compiled(self) -> None:
        """Have this process's children keep what they compile beside the data, for the next call and the next machine.
        To be called before any of it is imported."""
        kept = self.data / "compiled"
        os.environ |= {
            "TORCHINDUCTOR_CACHE_DIR": str(kept / "inductor"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "TRITON_CACHE_DIR": str(kept / "triton"),
            "NUMBA_CACHE_DIR": str(kept / "numba"),
        }

    def measured(self, section: str, what: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the `measure` of the section's module returns in the shared process; None, noted, if it failed or time
        ran out."""
        if self.left <= 0:
            self.results.missed(section, what)
            return None
        print(f"{section}: {what}, {self.left:.0f} s left", file=sys.stderr, flush=True)
        began, seconds = time.monotonic(), min(ROW, self.left)
        try:
            found = self.shared.ask(f"benchmarks.gpu.{section}", given, seconds)
        except Late:
            self.results.missed(section, what if seconds < ROW else f"{what}, which took more than {ROW:.0f} s")
            return None
        except Failed as error:
            self.results.failure(section, f"{what}: {error}")
            return None
        print(f"{section}: {what} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return found

    def _path(self) -> str:
        """Where the tree lies, and what PYTHONPATH names besides: packages that were brought along."""
        return os.pathsep.join(filter(None, (str(ROOT.parent), os.environ.get("PYTHONPATH"))))
