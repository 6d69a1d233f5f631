"""`python -m tests.reached REV`: the files of tests that a change since a revision can reach, for `make soak`.

By the import graph of the pins (tasks/stage/source.py), in which a process that is told a module by its name imports
it. A file that is no module counts for all in its folder and below, one outside our packages for the tests of the
repository and its documentation, and what is installed for everything.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tasks.stage.source import PACKAGES, ROOT, closure

ALL = (*PACKAGES, "flows", "profiles", "tests", "benchmarks")
EVERYTHING = {"pyproject.toml", "constraints.txt", "requirements-data.txt", "tests/conftest.py"}


def reached(changed: list[Path]) -> list[Path]:
    """The files of tests, of paths from the root."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
    if any(path.as_posix() in EVERYTHING for path in changed):
        return files
    modules = {_name(path) for path in changed if path.suffix == ".py"}
    others = [path.parent for path in changed if path.suffix != ".py"]
    folders = tuple(f"{'.'.join(path.parts)}." for path in others if path.parts[:1] and path.parts[0] in ALL)
    outside = len(folders) < len(others)
    return [
        file
        for file in files
        if modules & (behind := closure(_name(file), frozenset(), ALL))
        or any(f"{name}.".startswith(folders) for name in behind)
        or (outside and file.parent in (Path("tests"), Path("tests/docs")))
    ]


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main(revision: str) -> None:
    """Print a file a line."""
    command = ["git", "diff", "--name-only", revision]
    changed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    print(*reached([Path(line) for line in changed]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
