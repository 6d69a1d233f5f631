"""The digest of a stage's source code: a changed behaviour can never hide.

It covers the project's modules whose code can shape the bytes of the stage's artifact: those that the stage's own
module imports, directly or not, within functions too, and modules that a child process gets by name. It leaves out the
machinery that serves every stage alike, and packages that only watch or try a run (`insight/`, `preflight/`). It hashes
the syntax tree without docstrings and descriptions of fields, so that a comment, a line break or a better word costs
nobody a week of training.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from pathlib import Path

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


@functools.cache
def source_digest(module: str) -> str:
    """SHA-256 over the source of `module` and of all project modules it imports that can shape bytes."""
    digest = hashlib.sha256()
    for name in sorted(closure(module)):
        digest.update(f"{name}\n{_read(name)[1]}\n".encode())
    return digest.hexdigest()


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
