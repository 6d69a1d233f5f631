"""Where an artifact was made: versions of what shapes results, and the machine."""

from __future__ import annotations

import platform


def environment() -> dict[str, str]:
    """Where an artifact was made: versions of what shapes results, and the machine."""
    from importlib.metadata import version

    libraries = ("torch", "transformers", "deepspeed", "trl", "tokenizers", "pyarrow", "numpy")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        **{library: version(library) for library in libraries},
    }
