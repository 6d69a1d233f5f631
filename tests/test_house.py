"""The house rules that a machine can check: sizes of files and functions, docstrings, errors, imports, pins."""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import tasks

ROOT = Path(__file__).parent.parent
PACKAGES = ("flows", "tasks", "storage", "models", "profiles")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_FILE, MAX_MEDIAN, MAX_FUNCTION = 600, 200, 80
OVERRIDES = {"forward", "backward", "reset_parameters"}  # explained where they are declared
MAY_IMPORT = {
    "flows": {"flows", "profiles", "tasks", "models", "storage"},
    "profiles": {"profiles", "tasks", "models", "storage"},
    "tasks": {"tasks", "models", "storage"},
    "models": {"models"},
    "storage": {"storage"},
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_short_says_what_it_is_and_catches_nothing_blindly(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert lines_of(path) <= MAX_FILE
    assert ast.get_docstring(tree) or not tree.body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION, node.name
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            assert caught not in ("everything", "Exception", "BaseException"), f"line {node.lineno} catches {caught}"
    for name, node in public_functions(tree):
        assert ast.get_docstring(node) or name in OVERRIDES, f"{name} has no docstring"


def public_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of the module and methods of its classes, those with a leading underscore left out."""
    for scope in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        for node in scope.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield node.name, node


def test_the_median_file_fits_two_screens() -> None:
    assert statistics.median(lines_of(path) for path in FILES) <= MAX_MEDIAN
    assert lines_of(ROOT / "models" / "transformer.py") <= 400


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_arrows_point_down_only(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
    assert imported & set(PACKAGES) <= MAY_IMPORT[package]
    if package in ("storage", "models"):
        assert "prefect" not in imported


def test_compiled_code_is_cached_under_a_digest_of_all_that_it_is_made_of() -> None:
    hashed = {path for pattern in tasks.COMPILED for path in (ROOT / "tasks").rglob(pattern)}
    for path in (path for path in FILES if "@njit" in path.read_text()):
        assert path in hashed, f"{path.name} is compiled: name it …kernels.py"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tasks."):
                source = ROOT / f"{str(node.module).replace('.', '/')}.py"
                assert source in hashed, f"{path.name} compiles what it takes from {source.name}"
    assert os.environ["NUMBA_CACHE_DIR"].startswith(str(ROOT / "tasks" / "__pycache__" / "numba-"))


def test_a_profile_is_read_without_the_heavy_libraries() -> None:
    script = (
        "import sys; from profiles.load import load; load('tiny');"
        "heavy = {'torch', 'transformers', 'datasets', 'prefect', 'spacy', 'trl', 'deepspeed', 'numba', 'scipy'};"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.split() == []


def distribution(requirement: str) -> str:
    """The name in a requirement, in the usual spelling."""
    return re.split(r"[\[<>=!;~ ]", requirement)[0].lower().replace("_", "-")


def test_what_is_imported_is_declared_and_what_is_declared_is_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {distribution(requirement) for requirement in project["dependencies"]}
    provided = packages_distributions()
    used = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                used.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
    outside = used - set(sys.stdlib_module_names) - set(PACKAGES)
    needed = {module: {name.lower().replace("_", "-") for name in provided[module]} for module in outside}
    assert not [module for module, names in needed.items() if not names & declared]
    loaded_by_others = {"fastapi", "sqlalchemy", "bitsandbytes"}  # bounds for Prefect; a backend of transformers
    assert declared - loaded_by_others <= {name for names in needed.values() for name in names}


def test_every_dependency_is_pinned_and_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for name in ("constraints.txt", "requirements-data.txt")
        for line in (ROOT / name).read_text().splitlines()
        if "==" in line
    }
    needed = [
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra),
    ]
    for requirement in needed:
        name = re.split(r"[\[<>=!;~ ]", requirement)[0].lower().replace("_", "-")
        assert name in pinned, f"{name} is not in constraints.txt"
    for line in text.splitlines():
        if re.match(r'\s+"[\w\-\[\]]+[<>=~]', line):
            assert "#" in line, f"no reason: {line.strip()}"
