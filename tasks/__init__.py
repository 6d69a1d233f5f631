"""What each stage does: a package a stage, named as in the diagram of `flows/diagram/stages.py`."""

import hashlib
import os
from pathlib import Path

# Arrow's own allocator keeps what it once had (600 MB where 370 are in use); the system's gives it back. Arrow asks
# once, when it is first imported, which is after this.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

# Code that numba compiles, and the constants in it
COMPILED = ("*kernels.py", "characters.py", "comments.py", "phrases.py")


def compiled_code_cache(package: Path) -> Path:
    """Where numba keeps what it compiled: beside the code, or in the user's cache when that folder is read-only.

    numba checks the file of a function alone, not what that calls in another file: kept under a digest of all such
    files, a change in any of them compiles anew.
    """
    digest = hashlib.sha256()
    for path in sorted(path for pattern in COMPILED for path in package.rglob(pattern)):
        digest.update(path.read_bytes())
    folder = package / "__pycache__"
    if not os.access(folder if folder.exists() else package, os.W_OK):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill"
    return folder / f"numba-{digest.hexdigest()[:16]}"


os.environ.setdefault("NUMBA_CACHE_DIR", str(compiled_code_cache(Path(__file__).parent)))
