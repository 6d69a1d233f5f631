"""Finds where a task of lm-evaluation-harness is defined: among its own 14,000 files, or in a user's folder.

The harness parses all of its files to find one (15 s of CPU time). Here they are only searched for the name, and only
the folder that has it is parsed.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import ConfigError

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

NAMES = re.compile(rb"^[\"']?(?:task|group)[\"']?\s*:\s*[\"']?([\w.\-+:()]+)[\"']?\s*(?:#.*)?$", re.MULTILINE)
TAGS = re.compile(
    rb"^[\"']?tag[\"']?\s*:\s*(?:[\"']?([\w.\-+]+)[\"']?\s*$|\n?((?:\s*-\s*[\"']?[\w.\-+]+[\"']?\s*\n)+))", re.MULTILINE
)
SHOWN = 6  # names in an error


def installed() -> str:
    """The version of the harness."""
    from importlib.metadata import version

    return version("lm-eval")


def manager_of(task: str, folder: Path | None = None) -> TaskManager:
    """A TaskManager that knows `task` (a task, group or tag) and everything it refers to: from `folder`, whose
    definitions may include the harness's own by path, or from the harness. Raises ConfigError for an unknown name.
    """
    from lm_eval.tasks import TaskManager

    if folder is not None:
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        if task not in manager.all_tasks:
            raise ConfigError(
                f"No file of {folder} defines a task {task}. Tasks defined there: {some(manager.all_tasks)}.",
                "Name one of these, or check the task's YAML file: a file that can't be read is skipped.",
            )
        return manager
    manager = TaskManager(include_path=[str(path) for path in families(task)], include_defaults=False)
    if task not in manager.all_tasks:
        raise _unknown(task, [])
    return manager


def families(task: str) -> list[Path]:
    """The folders of the harness that define `task` and everything it refers to. Raises ConfigError for an unknown
    task."""
    return _reached(task)[0]


def _reached(task: str) -> tuple[list[Path], set[str]]:
    """The folders as in `families`, and the names of the task and everything it refers to."""
    known = _index()
    if task not in known:
        raise _unknown(task, sorted(name for name in known if task.lower() in name.lower()))
    folders, waiting, seen = dict.fromkeys(known[task]), [task], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for member in _members(name, list(folders)):
            waiting.append(member)
            if not set(known.get(member, ())) & folders.keys():
                folders |= dict.fromkeys(known.get(member, ())[:1])
    return list(folders), seen


def definition_digest(task: str) -> str:
    """SHA-256 over the harness's version and the files of the folders that define `task`, by name and content."""
    digest = hashlib.sha256(installed().encode())
    for folder in families(task):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".yaml", ".py", "") and path.is_file():
                digest.update(f"\0{path.relative_to(_root()).as_posix()}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _members(name: str, folders: list[Path]) -> Iterator[str]:
    """The names of a group's members."""
    from lm_eval.tasks import TaskManager

    entry = TaskManager(include_path=[str(folder) for folder in folders], include_defaults=False).task_index.get(name)
    listed = (entry.cfg or {}).get("task") if entry and entry.cfg else None
    for item in listed if isinstance(listed, list) else ():
        member = item if isinstance(item, str) else item.get("task", item.get("group"))
        if isinstance(member, str):
            yield member


def runs_programs(task: str, folder: Path | None = None) -> bool:
    """Whether the task judges answers by running them as programs: its code then names the metric `code_eval`."""
    folders = [folder] if folder is not None else families(task)
    return any(b"code_eval" in path.read_bytes() for one in folders for path in one.rglob("*.py"))


def is_known(task: str) -> bool:
    """Whether the harness has a task, group or tag of this name."""
    return task in _index()


def reads_sentences(task: str, folder: Path | None = None) -> bool:
    """Whether code of the task reads NLTK's punkt_tab. For the harness's own tasks only code next to the definitions
    counts, since a family may have many tasks of which one reads it."""
    if folder is not None:
        code_folders = {path.parent for path in folder.rglob("*.py")}
    else:
        families_of_task, names = _reached(task)
        code_folders = {
            path.parent
            for family in families_of_task
            for path in family.rglob("*.yaml")
            if not names.isdisjoint(_names(path.read_bytes()))
        }
    return any(b"punkt_tab" in path.read_bytes() for one in code_folders for path in one.glob("*.py"))


@functools.cache
def _root() -> Path:
    import importlib.util

    spec = importlib.util.find_spec("lm_eval.tasks")
    assert spec is not None, "lm-eval is a dependency"
    assert spec.origin is not None
    return Path(spec.origin).parent


@functools.cache
def _index() -> dict[str, list[Path]]:
    """Each task, group or tag of the harness by name, with the families (top-level folders) that define it."""
    known: dict[str, list[Path]] = {}
    for path in sorted(path for path in _root().rglob("*") if path.suffix in ("", ".yaml") and path.is_file()):
        family = _root() / path.relative_to(_root()).parts[0]
        for name in _names(path.read_bytes(), tags_only=not path.suffix):
            folders = known.setdefault(name, [])
            if family not in folders:
                folders.append(family)
    return known


def _names(text: bytes, *, tags_only: bool = False) -> list[str]:
    """The names of tasks, groups and tags in a definition, or only its tags, for a file that definitions include."""
    names = [] if tags_only else list(NAMES.findall(text))
    for single, listed in TAGS.findall(text):
        names += [single] if single else re.findall(rb"[\w.\-+]+", re.sub(rb"^\s*-\s*", b" ", listed, flags=re.M))
    return [name.decode() for name in names]


def _unknown(task: str, near: list[str]) -> ConfigError:
    return ConfigError(
        f"lm-evaluation-harness {installed()} doesn't have a task {task}.",
        f"Tasks with a similar name: {some(near)}." if near else "`lm-eval ls tasks` lists them.",
    )


def some(names: Sequence[str]) -> str:
    """The first names, and the number of the remaining ones."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "") or "none"
