"""Whole runs of the profile `smoke`: end to end, from the cache, killed in every stage."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from flows.report.report import report_of
from flows.report.run_page import page_of
from profiles.stage_names import STAGE_NAMES
from storage.inspect import verify
from storage.store import Store
from tasks.children.reap_orphans import descendants
from tests.flows.commands.test_cli import gristmill
from tests.flows.report.test_report import check_complete
from tests.pipeline.pin_losses import PINNED, first_losses
from tests.pipeline.runs import DATA_STAGES, SECRETS, SIGNALS, digests, finish, fork, start

PARTS_OF_EVALUATE = ("language_modelling", "score", "answers")  # the stage itself reports no progress
MODEL_STAGES = ("pii_pairs", "pairs", "pretrain", "sft", "reference", "dpo", *PARTS_OF_EVALUATE, "export")
ALL_STAGES = (*DATA_STAGES, *MODEL_STAGES)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    return store, finish(start(store))


def test_raw_text_becomes_a_release(undisturbed: tuple[Path, str]) -> None:
    store, said = undisturbed
    assert [name for name in STAGE_NAMES if re.search(rf"{name} .*made in", said)] == list(STAGE_NAMES)
    (release,) = map(Path, re.findall(r"Release: (.*)", said))
    for name in ("model.safetensors", "int8/model.safetensors", "gguf/model-f16.gguf", "parity.json"):
        assert (release / name).is_file()
    assert "| bits per byte |" in (release / "README.md").read_text()
    opened = Store(str(store))
    for location in opened.locations():
        assert verify(opened, location) == []


def test_its_report_tells_all_that_the_stages_counted(undisturbed: tuple[Path, str]) -> None:
    store, said = undisturbed
    assert "gristmill report smoke" in said
    opened = Store(str(store))
    report = report_of(opened, "smoke")
    check_complete(opened, report)
    assert {card.stage for card in report.lineage} == {location.partition("/")[0] for location in opened.locations()}
    assert [one.stage for one in report.trainings] == ["pretrain", "sft", "dpo"]
    assert report.results is not None
    assert {one.model for one in report.results.scores} == {"base", "sft", "dpo"}
    titles = [section.title for section in page_of(report).sections]
    assert titles == ["Data", "Tokens", "Training", "Evaluation", "Release", "Costs", "Lineage"]


def test_no_secret_of_the_environment_is_printed_or_kept(undisturbed: tuple[Path, str]) -> None:
    store, said = undisturbed
    prefect = Path(os.environ["PREFECT_HOME"])
    kept = b"".join(path.read_bytes() for folder in (store, prefect) for path in folder.rglob("*") if path.is_file())
    for secret in SECRETS.values():
        assert secret not in said
        assert secret.encode() not in kept


def test_the_first_losses_are_those_that_they_were(undisturbed: tuple[Path, str]) -> None:
    assert first_losses(undisturbed[0]) == pytest.approx(json.loads(PINNED.read_text()), abs=1e-5)


def test_a_second_run_takes_everything_from_the_store(undisturbed: tuple[Path, str]) -> None:
    store, _ = undisturbed
    before = digests(store)
    said = finish(start(store))
    assert len(re.findall(r"cached", said)) == len(STAGE_NAMES) + 1, "and the pairs"
    assert digests(store) == before


CONTINUED = """
extends: smoke
name: continued
base: {artifact: smoke/pretrain@1}
pretrain: {model: null, steps: 12, warmup_steps: 2, mixture: {speeches: 1.0}, learning_rate: 3.0e-4}
sft: null
dpo: null
evaluate:
  tasks: []
  prompts: []
  gates:
    - {task: bits_per_byte, source: speeches, no_worse_than: original, by: 0.5}
    - {task: bits_per_byte, model: original, at_most: 0.1}
export: {formats: [safetensors]}
"""


def test_a_model_of_the_store_is_trained_on_and_measured_beside_what_it_was(
    undisturbed: tuple[Path, str], tmp_path: Path
) -> None:
    store, _ = undisturbed
    profile = tmp_path / "continued.yaml"
    profile.write_text(CONTINUED)
    said = start(store, profile=str(profile)).communicate()[0]
    assert re.search(r"\| FAILED \| bits_per_byte \| original \| score at most 0.1 \| [2-4]\.", said), said
    assert re.search(r"\| passed \| .* speeches score no worse than original .* on \d+ documents ± ", said), said
    assert len(digests(store, "tokenizer")) == 1  # the base's is taken


@pytest.mark.soak
def test_a_changed_threshold_measures_nothing_again_and_why_names_it(undisturbed: tuple[Path, str]) -> None:
    store, _ = undisturbed
    before = set(digests(store, "download", "dedup", *SIGNALS))
    changed = "filter.toxicity.max_score=0.5"
    why = ("why", "filter", "smoke", f"--store={store}")
    told = gristmill(*why, f"--set={changed}").stdout
    assert "MISS" in told
    assert re.search(r"filter\.toxicity\.max_score\s+0\.15\s+0\.5", told)
    said = finish(start(store, "--to=tokenize", sets=(changed,)))
    for family in SIGNALS:
        assert re.search(rf"{family} .*cached", said)
    assert set(digests(store, "download", "dedup", *SIGNALS)) == before
    assert len(digests(store, "filter")) == 2
    after = gristmill(*why).stdout
    assert "HIT" in after
    assert "filter.toxicity.max_score" in after


@pytest.mark.soak
@pytest.mark.parametrize(
    ("stages", "last"), [(("filter", "pretrain"), "pretrain"), (ALL_STAGES, ALL_STAGES[-1])], ids=["some", "every"]
)
def test_killed_in_the_middle_of_a_stage_it_ends_with_the_same_bytes(
    stages: tuple[str, ...], last: str, undisturbed: tuple[Path, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    runs = [{"store": str(store), "to": last, "kill": stage} for stage in (*stages, None)]
    codes, said = fork(*runs)
    assert codes == [-signal.SIGKILL] * len(stages) + [0], said
    mine, whole = digests(store), digests(undisturbed[0])
    assert mine.items() <= whole.items()
    made = stages_of(whole) if last == ALL_STAGES[-1] else {*ALL_STAGES[: ALL_STAGES.index(last) + 1]}
    assert stages_of(mine) == made
    assert not list((store / "work").iterdir())


@pytest.mark.soak
def test_the_server_of_children_is_killed_in_every_stage_that_has_one_and_it_ends_with_the_same_bytes(
    undisturbed: tuple[Path, str], tmp_path: Path
) -> None:
    store, killed = tmp_path / "store", set[str]()
    with ThreadPoolExecutor(1) as other, start(store) as run:
        said = other.submit(finish, run)
        while not said.done():
            for spec, server in forked_children(run.pid):
                if spec not in killed:
                    time.sleep(0.3)  # that it is at work
                    os.kill(server, signal.SIGKILL)
                    killed.add(spec)
            time.sleep(0.1)
    assert len(killed) >= 6, said.result()
    mine, whole = digests(store), digests(undisturbed[0])
    assert mine.items() <= whole.items()
    assert stages_of(mine) == stages_of(whole)
    assert not list((store / "work").iterdir())


def stages_of(made: dict[str, str]) -> set[str]:
    """The stages of these locations."""
    return {location.split("/")[0] for location in made}


def forked_children(run: int) -> list[tuple[str, int]]:
    """What each is told by, and the server that it is a fork of."""
    words = {}
    for pid, _ in descendants(run):
        with suppress(OSError):
            words[pid] = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    found = []
    for pid, command in words.items():
        with suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if "tasks.children.warm.server" in words.get(parent, []) and command[2] != "tasks.children.warm.server":
                found.append((command[-1], parent))
    return found
