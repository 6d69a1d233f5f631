"""`python -m benchmarks.kernels`: what compiling costs the first run on a machine.

First `smoke` up to pretraining, with nothing compiled and again with everything: the difference is what a first run
waits for. Then every kernel that it compiled, compiled again in this process: CPU seconds without those of the kernels
that it calls, which stand in rows of their own, and in how many forms (numba compiles one for each combination of
types).
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from numba import config
from numba.core.event import Event, Listener, install_listener

from benchmarks.measure import end_as_interrupted
from benchmarks.start import measured
from tasks.text.kernel_cache import unsealed

MADE = ["run", "smoke", "--to=pretrain"]


class ByKernel(Listener):
    """CPU seconds of compiling, each second counted where it was spent."""

    def __init__(self) -> None:
        self.seconds, self.forms = Counter[str](), Counter[str]()
        self._callees = [0.0]  # of each kernel that is being compiled, the seconds of those that it called
        self._began: list[float] = []

    def on_start(self, event: Event) -> None:
        """See numba."""
        self._began.append(time.process_time())
        self._callees.append(0.0)

    def on_end(self, event: Event) -> None:
        """See numba."""
        took, function = time.process_time() - self._began.pop(), event.data["dispatcher"].py_func
        kernel = f"{function.__module__}.{function.__name__}"
        self.seconds[kernel] += took - self._callees.pop()
        self.forms[kernel] += 1
        self._callees[-1] += took


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=20, help="kernels to name (default 20)")
    asked = parser.parse_args()
    end_as_interrupted()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "kernels")
        print("| smoke up to pretraining | wall (s) | CPU (s) |\n|---|---|---|", flush=True)
        for name in ("nothing compiled", "all compiled"):
            environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
            wall, cpu, _ = measured([*MADE, "--store", f"{folder}/{name}"], environment)
            print(f"| {name} | {wall:.1f} | {cpu:.1f} |", flush=True)
        config.CACHE_DIR = f"{folder}/again"  # where nothing is found
        listener = ByKernel()
        with install_listener("numba:compile", listener):
            for kernel, signature in compiled(cache):
                kernel.compile(signature)
    print("\n| kernel | forms | CPU (s) |\n|---|---|---|")
    for name, seconds in listener.seconds.most_common(asked.most):
        print(f"| `{name}` | {listener.forms[name]} | {seconds:.1f} |")
    print(f"| all {len(listener.seconds)} | {listener.forms.total()} | {listener.seconds.total():.1f} |")


def compiled(cache: Path) -> list[tuple[Any, Any]]:
    """Each kernel of a cache and the types that it was compiled for, in the order in which they were."""
    found = []
    for index in cache.rglob("*.nbi"):
        module, _, rest = index.name.partition(".")
        kernel = rest.rpartition("-")[0]
        folder = ".".join(index.relative_to(cache).parts[1:-1])
        dispatcher = getattr(importlib.import_module(f"tasks.{folder}.{module}"), kernel)
        for (signature, *_), data in unsealed(index).items():
            found.append(((index.parent / data).stat().st_mtime, dispatcher, signature))
    return [(dispatcher, signature) for _, dispatcher, signature in sorted(found, key=lambda each: each[0])]


if __name__ == "__main__":
    main()
