"""What each stage does: a module or a package a stage, named as in the diagram of `flows/pipeline.py`."""

import hashlib
import os
from pathlib import Path

# Arrow's own allocator keeps what it once had (600 MB where 370 are in use); the system's gives it back. Arrow asks
# once, when it is first imported, which is after this.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

COMPILED = ("*kernels.py", "characters.py", "phrases.py")  # code that numba compiles, and the constants in it


def _cache_of_compiled_code() -> Path:
    """numba looks at the file of a function alone, not at what that calls in another file: kept under a digest of all
    such files, a change in any of them compiles anew."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for pattern in COMPILED for path in folder.rglob(pattern)):
        digest.update(path.read_bytes())
    return folder / "__pycache__" / f"numba-{digest.hexdigest()[:16]}"


if os.access(Path(__file__).parent, os.W_OK):
    os.environ.setdefault("NUMBA_CACHE_DIR", str(_cache_of_compiled_code()))
