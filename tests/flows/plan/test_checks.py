"""A run refuses impossible settings before its first stage. A plan may be for another machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from flows.commands.doctor import examine
from flows.commands.plan import show_plan
from flows.commands.run import run_pipeline
from flows.records.recorder import Asked
from flows.session import start
from storage.errors import ConfigError

MISSING = [name for name in ("tensorboard", "wandb", "mlflow") if find_spec(name) is None]
ELSEWHERE = {
    "runtime.training.hostfile=nope/hosts": r"training\.hostfile is nope/hosts, which does not exist",
    "runtime.compute.device=cuda": r"compute\.device is cuda, but",
} | {f"runtime.tracking.trackers=[{name}]": f"{name}, which is not installed" for name in MISSING[:1]}
NOWHERE = {
    "runtime.training.hostfile=/etc/passwd": "which can.t be parsed",
    "runtime.training.processes=3": "3 processes can't share evenly",
}


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(("setting", "named"), [*ELSEWHERE.items(), *NOWHERE.items()])
def test_a_run_refuses_it_and_has_made_nothing(setting: str, named: str, tmp_path: Path) -> None:
    settings = [setting, f"runtime.store={tmp_path / 'store'}"]
    with pytest.raises(ConfigError, match=named):
        run_pipeline(Console(quiet=True), "smoke", settings, None, [], False)
    with pytest.raises(ConfigError, match=named), start("smoke", settings, None, ()):
        pass  # as a worker of Prefect begins a run
    assert not list((tmp_path / "store").glob("download/*"))
    with start("smoke", settings, "tokenize", ()):
        pass  # which ends before the first stage that asks


@pytest.mark.parametrize("setting", ELSEWHERE)
def test_a_plan_for_another_machine_works(setting: str, tmp_path: Path) -> None:
    console = Console(width=160)
    with console.capture() as captured:
        show_plan(console, Asked("smoke", [setting, f"runtime.store={tmp_path / 'store'}"]))
    text = captured.get()
    assert "11 to make" in text
    assert ("does not exist on this machine" in text) == ("hostfile" in setting)


def test_a_plan_refuses_what_no_machine_can_do(tmp_path: Path) -> None:
    grouped = ["runtime.pretrain.engine=fsdp", "runtime.pretrain.replicate=2"]
    for settings, named in (
        (grouped, r"into 2 groups \(replicate\)"),
        ([*grouped, "runtime.training.processes=3"], "3 processes"),
        *(([setting], named) for setting, named in NOWHERE.items()),
    ):
        with pytest.raises(ConfigError, match=named):
            show_plan(Console(quiet=True), Asked("smoke", [*settings, f"runtime.store={tmp_path / 'store'}"]))


def test_the_doctor_refuses_what_a_run_would(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which does not exist"):
        examine(Console(quiet=True), "smoke", ["runtime.training.hostfile=nope", f"runtime.store={tmp_path / 'store'}"])
