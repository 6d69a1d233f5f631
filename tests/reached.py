"""`python -m tests.reached REV`: the files of tests that a change since a revision can reach, for `make soak`.

By the import graph of the pins (tasks/stage/source.py), in which a process that is told a module by its name imports
it. A file that is no module counts for all in its folder and below, one outside our packages for the tests of the
repository and its documentation, and what is installed for everything.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

from tasks.stage.source import PACKAGES, ROOT, imports

ALL = (*PACKAGES, "flows", "gristmill", "profiles", "tests", "benchmarks")
FILES = (".json", ".yaml", ".md", ".toml")  # strings such as gristmill.json look like modules
EVERYTHING = {"pyproject.toml", "constraints.txt", "requirements-data.txt", "tests/conftest.py"}


def reached(changed: list[Path]) -> list[Path]:
    """The files of tests, of paths from the root."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
    if any(path.as_posix() in EVERYTHING for path in changed):
        return files
    others = [path.parent for path in changed if path.suffix != ".py"]
    folders = tuple(f"{'.'.join(path.parts)}." for path in others if path.parts[:1] and path.parts[0] in ALL)
    outside = len(folders) < len(others)
    importers = _importers()
    waiting = {_name(path) for path in changed if path.suffix == ".py"}
    waiting |= {name for name in importers if f"{name}.".startswith(folders)}
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting |= importers.get(name, set())
    about_all = (Path("tests"), Path("tests/docs"))
    return [file for file in files if _name(file) in seen or (outside and file.parent in about_all)]


@functools.cache
def _importers() -> dict[str, set[str]]:
    """Who imports each module, or names it."""
    importers: dict[str, set[str]] = {}
    for package in ALL:
        for path in (ROOT / package).rglob("*.py"):
            name = _name(path.relative_to(ROOT))
            if ".." in name:  # in a hidden folder, such as an environment of a benchmark's peers
                continue
            importers.setdefault(name, set())
            for used in imports(name):
                if used.endswith(FILES):
                    continue
                for end in (*(place for place, letter in enumerate(used) if letter == "."), len(used)):
                    importers.setdefault(used[:end], set()).add(name)  # the packages that it is in, too
            if path.stem == "__main__":
                importers.setdefault(name, set()).add(name.rpartition(".")[0])  # whoever names the package runs it
    return importers


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
