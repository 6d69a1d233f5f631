"""The digest of a stage's source code: a changed behaviour can never hide.

It covers the modules of the project that the stage imports, directly or not, except the machinery that carries every
stage alike. What is hashed is the syntax tree without docstrings, so that a comment or a line break costs nobody a
week of training.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tasks", "models", "storage")
MACHINERY = {
    "tasks.stage.decorator", "tasks.stage.session", "tasks.stage.source", "tasks.stage.output", "tasks.stage.progress",
    "tasks.shards.seam", "tasks.children.supervise",
    "storage.store", "storage.refs", "storage.locks", "storage.manifest", "storage.artifact", "storage.errors",
    "storage.keys", "storage.digests",
}  # fmt: skip


@functools.cache
def source_digest(module: str) -> str:
    """SHA-256 over the source of `module` (and of its siblings, in a package) and all project modules they import."""
    digest = hashlib.sha256()
    for name in sorted(_closure(module)):
        digest.update(f"{name}\n{_tree(name)}\n".encode())
    return digest.hexdigest()


def _closure(module: str) -> set[str]:
    package = module.rpartition(".")[0] if module.count(".") > 1 else module
    waiting = _submodules(package) if (ROOT / package.replace(".", "/")).is_dir() else {module}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name in MACHINERY or _file(name) is None:
            continue
        seen.add(name)
        waiting |= _imports(name)
    return seen


def _submodules(package: str) -> set[str]:
    folder = ROOT / package.replace(".", "/")
    return {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in folder.rglob("*.py")}


def _file(module: str) -> Path | None:
    if module.split(".")[0] not in PACKAGES:
        return None
    path = ROOT / module.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@functools.cache
def _parsed(module: str) -> ast.Module:
    file = _file(module)
    assert file is not None
    return ast.parse(file.read_text())


def _imports(module: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(_parsed(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("tasks."):
            found.add(node.value)  # a child process is told its module by name
    return found


@functools.cache
def _tree(module: str) -> str:
    tree = _parsed(module)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
