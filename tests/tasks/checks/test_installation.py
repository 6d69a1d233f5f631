"""What `gristmill doctor` says of an installation: what is missing or broken is named."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.checks import installation
from tasks.checks.installation import QUIET, imports, installed, judge_speed, judge_versions, quiet, store_works


def test_this_installation_passes(tmp_path: Path) -> None:
    assert installation.python().state == "passed"
    assert installation.versions(installation.ROOT).state != "failed"
    assert store_works(str(tmp_path / "store")).state == "passed"
    assert installation.disk(tmp_path / "not" / "there").value.endswith("GB free on /") or os.path.ismount(tmp_path)
    assert [check.state != "failed" for check in installation.torch_speed()] == [True, True]


def test_missing_and_other_versions_are_named() -> None:
    found = installed()
    pins = {"torch": found["torch"].partition("+")[0], "numpy": found["numpy"]}
    assert judge_versions(pins, found).state == "passed"
    other = judge_versions({**pins, "numpy": "0.1"}, found)
    assert other.state == "advice"
    assert f"numpy {found['numpy']} instead of 0.1" in other.value
    lacking = judge_versions(pins, {name: version for name, version in found.items() if name != "deepspeed"})
    assert lacking.state == "failed"
    assert lacking.value == "deepspeed not installed"


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
    assert quiet(QUIET).state == "passed"
    assert quiet({**QUIET, "DO_NOT_TRACK": "0"}).value == "DO_NOT_TRACK not set"
    assert "http://here" in quiet({**QUIET, "PREFECT_API_URL": "http://here/api"}).value
    assert judge_speed(50.0, "float32", 2).state == "passed"
    assert judge_speed(1.0, "float32", 2).state == "advice"
