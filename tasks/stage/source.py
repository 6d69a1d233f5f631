"""The digest of a stage's source code: a changed behaviour can never hide.

It covers the project's modules whose code can shape the bytes of the stage's artifact: those that the stage's own
module imports, directly or not, within functions too, and modules that a child process gets by name. It leaves out the
machinery that serves every stage alike, and packages that only watch or try a run (`insight/`, `preflight/`). It hashes
the syntax tree without docstrings and descriptions of fields, so that a comment, a line break or a better word costs
nobody a week of training.

Parsing some hundred modules takes a second, so the cache folder keeps a digest for as long as the modules that it
covers, and the folders that they lie in, are the same by size and time of change.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from storage.digest_cache import SETTLED_SECONDS
from storage.files.cache import cache_folder

ROOT = Path(__file__).resolve().parents[2]
WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGES = ("tasks", "models", "storage")
NAME = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")  # of a module
NO_BYTES = {  # modules, and packages with all that is in them
    "tasks.stage.decorator", "tasks.stage.identity", "tasks.stage.making", "tasks.stage.as_task",
    "tasks.stage.session", "tasks.stage.source", "tasks.stage.output", "tasks.stage.display.progress",
    "tasks.stage.protocol", "tasks.stage.history", "tasks.stage.environment", "tasks.stage.machine",
    "tasks.stage.runtime", "tasks.shards.map_shards", "tasks.shards.shard", "tasks.shards.broadcast",
    "tasks.shards.choice", "tasks.shards.executors", "tasks.shards.processes", "tasks.shards.threads",
    "tasks.shards.dask_workers", "tasks.shards.dask_preload", "tasks.shards.ray_workers", "tasks.shards.worker_checks",
    "tasks.shards.temporary", "tasks.training.device_lock", "tasks.children", "tasks.checks", "tasks.pretrain.insight",
    "tasks.pretrain.preflight", "storage.store", "storage.refs", "storage.manifest", "storage.artifact",
    "storage.errors", "storage.keys", "storage.digests", "storage.units", "storage.credentials", "storage.damage",
    "storage.leases", "storage.digest_cache", "storage.files",
}  # fmt: skip


class Remembered(NamedTuple):
    """A digest, the modules that it covers, and the state of their files."""

    digest: str
    modules: list[str]
    state: str


@functools.cache
def source_digest(module: str) -> str:
    """SHA-256 over the source of `module` and of all project modules it imports that can shape bytes."""
    known = _remembered()
    if module in known and _state(known[module].modules) == known[module].state:
        return known[module].digest
    digest, names = hashlib.sha256(), sorted(closure(module))
    state = _state(names)
    for name in names:
        digest.update(f"{name}\n{_read(name)[1]}\n".encode())
    known[module] = Remembered(digest.hexdigest(), names, state)
    _keep(known)
    return known[module].digest


def _place() -> Path:
    return cache_folder() / f"sources-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]}.json"


@functools.cache
def _remembered() -> dict[str, Remembered]:
    with suppress(OSError, ValueError, TypeError, AttributeError):  # missing, or damaged
        return {name: Remembered(*row) for name, row in json.loads(_place().read_text()).items()}
    return {}


def _keep(known: Mapping[str, Remembered]) -> None:
    """Losing the file costs only time."""
    with suppress(OSError):
        _place().parent.mkdir(parents=True, exist_ok=True)
        draft = _place().with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(known))
        draft.replace(_place())


def _state(modules: Iterable[str]) -> str:
    """The sizes and times of change of modules, and of their folders, in which a new module may lie. Unique while one
    changed within `SETTLED_SECONDS`: it may change again within the resolution of its time."""
    files = [_file(name) for name in modules]
    about = [(str(path), path.stat()) for path in {*files, *(file.parent for file in files if file)} if path]
    newest = max((state.st_mtime for _, state in about), default=0.0)
    states = sorted((path, state.st_size, state.st_mtime_ns) for path, state in about)
    unsettled = time.time() if time.time() - newest < SETTLED_SECONDS else ""
    return hashlib.sha256(f"{states}{unsettled}".encode()).hexdigest()


def closure(module: str, but: frozenset[str] = frozenset(NO_BYTES)) -> set[str]:
    """`module` and the project's modules that it imports, directly or not, without those under `but`."""
    waiting, seen = {module}, set[str]()
    while waiting:
        name = waiting.pop()
        ours = name.split(".")[0] in PACKAGES and _file(name) is not None
        if name in seen or not ours or any(f"{name}.".startswith(f"{left_out}.") for left_out in but):
            continue
        seen.add(name)
        waiting |= imports(name)
    return seen


def imports(module: str) -> set[str]:
    """The modules that a module of the project, or of its tests, imports or names in a string for a child process."""
    return _read(module)[0]


def _file(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@functools.cache
def _read(module: str) -> tuple[set[str], str]:
    """A module's imports, and its syntax tree as text. Read once a process, however many stages share it."""
    file = _file(module)
    assert file is not None
    found: set[str] = set()
    return found, _dump(ast.parse(file.read_text()), found)


def _dump(node: object, found: set[str]) -> str:
    """`ast.dump` without docstrings, descriptions of fields, and empty fields: these differ between Python versions,
    and the digest must not. Imports on the way are added to `found`: a second walk of the tree would take as long."""
    if isinstance(node, list):
        return f"[{', '.join([_dump(item, found) for item in node])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, WITH_DOCSTRINGS):
        if ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    elif isinstance(node, ast.Import):
        found.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
        found.add(node.value)  # a child process gets its module by name
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field":
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "description"]
    values = [(name, getattr(node, name, None)) for name in node._fields]
    fields = [f"{name}={_dump(value, found)}" for name, value in values if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(fields)})"
