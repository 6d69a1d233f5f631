"""The house rules that a machine can check: sizes of files and functions, docstrings, errors, imports, pins."""

from __future__ import annotations

import ast
import functools
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from benchmarks.filter.__main__ import FAMILIES
from tasks.text.kernel_cache import COMPILED

ROOT = Path(__file__).parent.parent
PACKAGES = ("gristmill", "flows", "tasks", "storage", "models", "profiles")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_FILE, MAX_MEDIAN, MAX_FUNCTION = 600, 200, 80
EXPLAINED = {"forward", "backward", "reset_parameters", "named_parameters"}  # by torch
MAX_MODULES = 14  # beside each other in a folder
# Extras of packages imported by name
BY_STAGES = ("models", "train", "eval", "serve", "web", "documents", "dumps", "report")

STAGES = {
    "download",
    "synthesise",
    "dedup",
    "filter",
    "tokenizer",
    "tokenize",
    "pretrain",
    "base",
    "posttrain",
    "evaluate",
    "export",
}
ACROSS = {  # the imports from one stage into another
    ("tokenize", "tokenizer"),  # documents are encoded by the tokenizer's own kernels
    ("export", "tokenizer"),  # a GGUF file names the pattern that cuts text
    ("pretrain", "base"),  # which gets rows for new tokens
    ("base", "tokenizer"),  # a tokenizer of others is loaded with the same care
    ("filter", "base"),  # a classifier of others is read with the same care
    ("filter", "dedup"),  # sentences of a host are found, and counted in bounded memory, as repeated ones are
    ("evaluate", "base"),  # models of others are a yardstick
    ("evaluate", "export"),  # and links in formats of a release are measured too
    ("evaluate", "posttrain"),  # a reward model judges answers, side by side
    ("evaluate", "filter"),  # what models say is searched for abuse and personal data as documents are
    ("ablate", "tokenize"),  # models are compared on documents that it held out
    ("draft", "base"),  # a draft is another model,
    ("draft", "posttrain"),  # or the released one pruned and distilled
    ("serve", "download"),  # votes are checked by the code that will read them
    ("serve", "export"),  # a release is opened, and random words are found as in one
    ("serve", "filter"),  # requests and answers are searched for personal data, secrets and abuse as documents are
    ("posttrain", "base"),  # teachers and merged models from elsewhere are taken as bases are
    ("posttrain", "export"),  # answers are sampled from a GGUF file
    ("posttrain", "dedup"),  # near-duplicates among pairs are those among documents
}
MAY_IMPORT = {
    "gristmill": {"gristmill", "flows", "profiles", "tasks", "models", "storage"},
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


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_files_are_short_say_what_they_are_and_catch_nothing_blindly() -> None:
    assert [f"{name_of(path)}: {wrong}" for path in FILES for wrong in wrong_with(path)] == []


def wrong_with(path: Path) -> Iterator[str]:
    tree = tree_of(path)
    if lines_of(path) > MAX_FILE:
        yield f"{lines_of(path)} lines"
    if tree.body and not ast.get_docstring(tree):
        yield "no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION:
                yield f"{node.name} is too long"
        elif isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            if caught in ("everything", "Exception", "BaseException"):
                yield f"line {node.lineno} catches {caught}"
    explained = EXPLAINED | explained_methods()
    named = [*public_functions(tree.body)]
    named += [each for owner in classes(tree) for each in public_functions(owner.body) if each[0] not in explained]
    yield from (f"{name} has no docstring" for name, node in named if not ast.get_docstring(node))


def classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def public_functions(body: list[ast.stmt]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of a module or methods of a class, those with a leading underscore left out."""
    for node in body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node


@functools.cache
def explained_methods() -> set[str]:
    """Names of methods that a class explains: one that overrides or implements it inherits the explanation."""
    owners = [owner for path in FILES for owner in classes(tree_of(path))]
    return {name for owner in owners for name, node in public_functions(owner.body) if ast.get_docstring(node)}


def test_the_median_file_fits_two_screens() -> None:
    assert statistics.median(lines_of(path) for path in FILES) <= MAX_MEDIAN
    assert lines_of(ROOT / "models" / "transformer.py") <= 400


def test_arrows_point_down_only() -> None:
    wrong = []
    for path in FILES:
        package = path.relative_to(ROOT).parts[0]
        imported = set()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
        forbidden = set(PACKAGES) - MAY_IMPORT[package] | ({"prefect"} if package in ("storage", "models") else set())
        wrong += [f"{name_of(path)} imports {name}" for name in sorted(imported & forbidden)]
    assert wrong == []


@functools.cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package by its own, for its __init__.py."""
    named = {path: path.relative_to(ROOT).with_suffix("").parts for path in FILES}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in named.items()}


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Which module imports which, in functions and under TYPE_CHECKING too. `from package import module` names the
    module alone: that a package's own __init__ re-exports from its modules is no circle."""
    known = modules()
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(tree_of(path)):
            found: set[str] = set()
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = {alias: f"{node.module}.{alias.name}" for alias in node.names}
                found = {full if full in known else node.module for full in whole.values()}
            elif isinstance(node, ast.Import):
                found = {alias.name for alias in node.names}
            graph[name] |= (found & known.keys()) - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other in a circle, by taking away what nobody, or nobody left, imports."""
    left = {name: set(imported) for name, imported in graph.items()}
    while True:
        imported = set().union(*left.values()) if left else set()
        ends = {name for name, needs in left.items() if not needs or name not in imported}
        if not ends:
            return [sorted(left)] if left else []
        left = {name: needs - ends for name, needs in left.items() if name not in ends}


def test_no_module_imports_itself_through_others() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert circles(import_graph()) == []


def folder_graph(parent: str) -> dict[str, set[str]]:
    """Which of the packages in a package import which of the others, by any of their modules."""
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    children = {name for name in packages if name.rpartition(".")[0] == parent}

    def child(module: str) -> set[str]:
        return {name for name in children if f"{module}.".startswith(f"{name}.")}

    graph: dict[str, set[str]] = {name: set() for name in children}
    for module, imported in import_graph().items():
        for name in child(module):
            graph[name] |= {other for one in imported for other in child(one)} - {name}
    return graph


def test_no_folder_imports_itself_through_its_neighbours() -> None:
    parents = {name.rpartition(".")[0] for name, path in modules().items() if path.name == "__init__.py"}
    assert {parent: found for parent in sorted(parents) if (found := circles(folder_graph(parent)))} == {}


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    folders = {path.parent for path in FILES}
    counts = {
        str(folder.relative_to(ROOT)): sum(1 for path in folder.glob("*.py") if path.name != "__init__.py")
        for folder in folders
    }
    crowded = {name: count for name, count in counts.items() if count > MAX_MODULES}
    assert not crowded
    assert not [path.name for path in (ROOT / "tasks").glob("*.py") if path.name != "__init__.py"], "no loose module"


def test_tables_of_contents_name_what_there_is() -> None:
    listed = re.compile(r"^([a-z_0-9]+(?:\.py|/)) {2,}\S", re.MULTILINE)
    gone = [
        f"{name_of(path)}: {name}"
        for path in FILES
        if path.name == "__init__.py"
        for name in listed.findall(ast.get_docstring(ast.parse(path.read_text())) or "")
        if not (path.parent / name).exists()
    ]
    assert gone == []


def test_a_stage_imports_another_only_where_that_is_listed() -> None:
    across = {
        (name.split(".")[1], other.split(".")[1])
        for name, imported in import_graph().items()
        for other in imported
        if name.startswith("tasks.") and other.startswith("tasks.")
    }
    between = {(room, other) for room, other in across if room != other and other in STAGES}
    assert between == ACROSS


def test_compiled_code_is_cached_under_a_digest_of_all_that_it_is_made_of() -> None:
    hashed = {path for pattern in COMPILED for path in (ROOT / "tasks").rglob(pattern)}
    for path in (path for path in FILES if "@njit" in path.read_text()):
        assert path in hashed, f"{path.name} is compiled: name it …kernels.py"
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tasks."):
                source = ROOT / f"{str(node.module).replace('.', '/')}.py"
                assert source in hashed, f"{path.name} compiles what it takes from {source.name}"


def compiled(path: Path) -> Iterator[str]:
    """The names of a module's compiled functions."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and any("njit" in ast.unparse(mark) for mark in node.decorator_list):
            yield node.name


def called_from_python() -> set[str]:
    """The compiled functions, by dotted name, that a module which is not compiled itself imports or takes."""
    kernels = {name: set(compiled(path)) for name, path in modules().items() if "@njit" in path.read_text()}
    found = set()
    for name, path in modules().items():
        if name in kernels:
            continue
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name: (f"{node.module}", alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        found |= {f"{module}.{name}" for module, name in imported.values() if name in kernels.get(module, ())}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = ".".join(imported.get(node.value.id, ()))
                if node.attr in kernels.get(module, ()):
                    found.add(f"{module}.{node.attr}")
    return found


def test_what_is_compiled_has_a_test_that_does_the_same_plainly() -> None:
    shadowed = {
        str(argument.value)
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.shadow"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert shadowed == called_from_python()


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
    extras = project["optional-dependencies"]
    needed_by_stages = [*project["dependencies"], *(one for extra in BY_STAGES for one in extras[extra])]
    declared = {distribution(requirement) for requirement in needed_by_stages} - {"gristmill"}
    provided = packages_distributions()
    used = set()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                used.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
    outside = used - set(sys.stdlib_module_names) - set(PACKAGES)
    needed = {module: {name.lower().replace("_", "-") for name in provided[module]} for module in outside}
    assert not [module for module, names in needed.items() if not names & declared]
    # Bounds for Prefect; a backend of transformers; what the harness's code of IFEval imports; what trafilatura
    # imports; what sketches equal, as tests see, and whose read-me is text of the embedded corpus
    loaded_by_others = {"fastapi", "sqlalchemy", "bitsandbytes", "immutabledict", "lxml-html-clean", "datasketch"}
    assert declared - loaded_by_others <= {name for names in needed.values() for name in names}


def test_the_data_half_needs_no_extra() -> None:
    """What only extras bring is imported where it is used: a module that names it at its top is not imported by a
    stage's own module, a command or `gristmill`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {distribution(one) for extra in BY_STAGES for one in extras[extra]} - {"gristmill"}
    provided = packages_distributions()
    begins = {name: set(at_top(path)) for name, path in modules().items()}
    heavy = {
        name
        for name, used in begins.items()
        if any(brought & {one.lower().replace("_", "-") for one in provided.get(top.split(".")[0], [])} for top in used)
    }
    waiting, seen = [name for name in begins if name.partition(".")[0] in ("gristmill", "flows")], set[str]()
    while waiting:
        name = waiting.pop()
        if name in begins and name not in seen:
            seen.add(name)
            waiting += [name.rpartition(".")[0], *begins[name]]
    assert heavy
    assert heavy & seen == set()


def at_top(path: Path) -> Iterator[str]:
    """What a module imports as soon as it is imported itself, without what is only for types."""
    for node in tree_of(path).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_dependency_is_pinned_and_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for name in ("constraints.txt", "requirements-data.txt", "requirements-finetune.txt")
        for line in (ROOT / name).read_text().splitlines()
        if "==" in line
    }
    needed = [
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra),
    ]
    for requirement in needed:
        name = distribution(requirement)
        assert name == "gristmill" or name in pinned, f"{name} is not in constraints.txt"
    for line in text.splitlines():
        if re.match(r'\s+"[\w\-\[\]]+[<>=~]', line):
            assert "#" in line, f"no reason: {line.strip()}"


def test_every_benchmark_of_the_filter_is_run_with_the_others() -> None:
    commands = {
        path.stem
        for path in (ROOT / "benchmarks" / "filter").glob("*.py")
        if path.read_text().startswith(f'"""`python -m benchmarks.filter.{path.stem}')
    }
    assert set(FAMILIES) == commands - {"pii_tools"}  # which runs one tool, for `pii`
