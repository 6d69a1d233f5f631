"""What Arrow and numba import only to learn whether it is there, left out: half a second of a process's CPU time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_within: list[None] = []  # one for each block that is being run, of all threads


@contextmanager
def without_pandas() -> Iterator[None]:
    """Within it Arrow takes it that pandas is not installed; else the first array imports it (0.25 s, 30 MB), to
    recognise pandas' types, which nothing here passes. Afterwards Arrow asks again."""
    if "pandas" in sys.modules:
        yield
        return
    with _Hidden("pandas"):
        pa.array([0])
    _within.append(None)
    try:
        yield
    finally:
        _within.pop()
        if not _within:
            pa.lib._pandas_api.__init__()


def start_numba() -> None:
    """Start numba without SciPy's linear algebra (0.2 s), which it asks for at once and needs for matrix products only;
    where a function has one, it asks again."""
    if "numba.np.arraymath" in sys.modules or "scipy.linalg" in sys.modules:
        return
    with _Hidden("scipy.linalg"):
        from numba.np import arraymath
    arraymath._HAVE_BLAS = True


class _Hidden:
    """A finder that says of a module that there is none, to the thread that made it."""

    def __init__(self, module: str) -> None:
        self.module, self.thread = module, threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name == self.module and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
