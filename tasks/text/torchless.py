"""Imports libraries without torch, which they don't need here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OPTIONAL = ("torch", "transformers")


@contextmanager
def without_torch() -> Iterator[None]:
    """Make optional imports of torch fail within the block, unless it is loaded already.

    Presidio imports transformers for recognisers that are not used here, and spaCy's thinc imports torch if it is
    installed: 5 s and 400 MB per worker.
    """
    hidden: dict[str, Any] = {name: None for name in OPTIONAL if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
