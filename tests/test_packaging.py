"""The wheel works without the checkout: everything that is read at run time is in it."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = sorted({path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"})
TOP = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "SECURITY.md",
    "MANIFEST.in",
    "Makefile",
    "prefect.yaml",
)
PINS = ("constraints.txt", "requirements-data.txt", "requirements-finetune.txt")
WHERE = f"import importlib; print(*(importlib.import_module(name).__file__ for name in {PACKAGES}), sep='\\n')"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the distributions are made of, since building leaves files in the folder that it builds."""
    folder = tmp_path_factory.mktemp("source")
    for name in (*TOP, *PINS):
        shutil.copy(ROOT / name, folder)
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, without a network: setuptools is installed with the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    quietly(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(folder), str(source))
    (path,) = folder.glob("gristmill-*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel, and with this one's libraries but not its Gristmill.

    A `.pth` file appends a folder to the path and leaves the `.pth` files in it alone, an editable Gristmill's too.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    libraries = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (libraries / "libraries.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    offline = ("--no-deps", "--no-index", "--no-compile", "--ignore-installed")
    quietly(str(folder / "bin" / "python"), "-m", "pip", "install", *offline, str(wheel))
    return folder / "bin" / "python"


def quietly(*command: str, cwd: Path | None = None) -> str:
    """Run a command outside the checkout, with nothing that points into it; its output is shown when it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd or Path("/"), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_of_the_packages_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        assert archive.read("flows/prefect.yaml") == (ROOT / "prefect.yaml").read_bytes()
        assert archive.read("tasks/checks/constraints.txt") == (ROOT / "constraints.txt").read_bytes()
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == files
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Project-URL: Changelog, " in metadata


def test_licence_and_changelog_are_in_the_source_distribution(source: Path, tmp_path: Path) -> None:
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    quietly(sys.executable, "-c", build, cwd=source)
    (path,) = tmp_path.glob("gristmill-*.tar.gz")
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert {*TOP, *PINS, "tests/test_packaging.py"} <= files


def test_an_installed_wheel_plans_a_run_in_an_empty_folder(python: Path, tmp_path: Path) -> None:
    environment = python.parents[1]
    modules = quietly(str(python), "-c", WHERE, cwd=tmp_path).splitlines()
    assert all(Path(module).is_relative_to(environment) for module in modules)
    lines = quietly(str(environment / "bin" / "gristmill"), "plan", "tiny", cwd=tmp_path)
    assert "export" in lines
    assert not list(tmp_path.iterdir())


@pytest.mark.soak
def test_an_installed_wheel_registers_its_deployments_from_any_folder(python: Path, tmp_path: Path) -> None:
    script = (
        "import yaml; from prefect.flows import load_flow_from_entrypoint as load;"
        "from flows.deployments import DECLARED;"
        "found = yaml.safe_load(DECLARED.read_text())['deployments'];"
        "print(*sorted(load(one['entrypoint'], use_placeholder_flow=False).name for one in found))"
    )
    expected = ["evaluate-ref", "export-ref", "on-new-data", "pipeline", "pipeline", "promote", "stage"]
    assert quietly(str(python), "-c", script, cwd=tmp_path).split() == expected


def test_a_run_beside_files_of_our_packages_names_takes_none_of_them(python: Path, tmp_path: Path) -> None:
    """A folder of a run is whoever's: one with a `tasks.py` ended every process that the run started."""
    for name in (*PACKAGES, "tests", "benchmarks"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the {name} of this folder was taken')")
    settings = ["--set=download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 40}]", "--to=download"]
    run = [
        str(python.parents[1] / "bin" / "gristmill"),
        "run",
        "smoke",
        *settings,
        "--set=download.benchmarks=[arc_easy]",
    ]
    assert "Done in" in quietly(*run, cwd=tmp_path), "the server, and what it is tied to"
    children = (
        "import os, subprocess, sys; import tasks;"
        "from tasks.children.launchers import training_command as of; from tasks.stage.runtime import TrainingRuntime;"
        "from pathlib import Path; processes = TrainingRuntime(processes=int(sys.argv[1]));"
        "sys.exit(subprocess.run(of('tasks.text.characters', Path('spec'), processes)).returncode)"
    )
    for processes in ("1", "2"):
        quietly(str(python), "-P", "-c", children, processes, cwd=tmp_path)
