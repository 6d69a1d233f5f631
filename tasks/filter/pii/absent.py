"""Imports without the torch that they do not need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OPTIONAL = ("torch", "transformers")


@contextmanager
def without_torch() -> Iterator[None]:
    """Have optional imports of torch fail, unless it is loaded already.

    Presidio imports transformers for recognisers that are not used here, spaCy's thinc imports torch where it finds
    it: 5 s and 400 MB a worker.
    """
    hidden: dict[str, Any] = {name: None for name in OPTIONAL if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
