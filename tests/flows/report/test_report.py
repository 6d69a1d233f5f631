"""What a report gathers: everything that the manifests count, from whole stores, holed ones and odd ones."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.records.figures import figures_of
from flows.report.comparison_page import page_of_both
from flows.report.differences import comparison_of
from flows.report.in_release import release_report
from flows.report.reading import cleaned
from flows.report.report import Report, find, report_of
from flows.report.run_page import page_of
from storage.errors import ConfigError, GristmillError, StoreError
from storage.manifest import Manifest
from storage.store import Store
from tasks.checks import extras
from tests.flows.commands.test_cli import gristmill
from tests.flows.report.made import BIDI, HOSTILE, MAIL, PATH, SOURCE, Made, documents

ODD = 12  # manifests of other forms


def check_complete(store: Store, report: Report) -> None:
    """Every count of the lineage's manifests is there, and the documents of every stage add up."""
    for card in report.lineage:
        manifest = store.manifest(card.location)
        assert manifest is not None
        assert card.counts == cleaned(figures_of(manifest))
        assert {*card.inputs.values()} == {ref.location for ref in manifest.origins.values()}
    assert report.data is not None
    for step in [*report.data.steps, *report.data.pairs]:
        assert step.came_in == step.kept + sum(step.removed.values()) + step.quarantined
    seconds = [one.seconds for one in report.costs.stages if one.seconds is not None]
    assert report.costs.seconds == pytest.approx(sum(seconds), abs=0.01)


def test_every_count_is_there_and_adds_up(made: Made, report: Report) -> None:
    check_complete(made.store, report)
    head = report.headline
    assert (head.kind, head.parameters, head.tokens, head.bits_per_byte) == ("release", 1000, 4000, 1.5)
    assert (head.documents_in, head.documents_kept, head.sources) == (10, 5, [SOURCE])
    data = report.data
    assert data is not None
    assert data.sources[0].documents == {"download": 10, "dedup": 8, "filter": 5}
    assert data.sources[0].licence == "CC0-1.0"
    assert (data.languages, data.languages_kept) == ({"en": 5, "fr": 3}, ["en"])
    assert [(one.low, one.documents) for one in data.lengths if one.documents] == [(100, 5)]
    assert [(one.low, one.high, one.documents) for one in data.clusters if one.documents] == [(2, 3, 1)]
    assert [(one.stage, one.id[-1]) for one in data.examples] == [
        ("dedup", "8"),
        ("dedup", "9"),
        ("filter", "5"),
        ("filter", "6"),
    ]
    (training,) = report.trainings
    assert training.steps_in_a_point == 4
    assert len(training.curve) == 500
    assert sum(point.loss or 0 for point in training.curve) / 500 == pytest.approx(5 - 2001 / 2000)
    assert (training.curve[-1].step, training.curve[-1].validation) == (2000, 3.25)
    assert training.events[0]["step"] == 700


def test_a_training_by_rewards_has_the_curves_of_its_measures(tmp_path: Path) -> None:
    def log(folder: Path) -> None:
        rows = [{"step": step, "loss": 0.0, "reward": step / 1000, "entropy": 1.5} for step in range(1, 1001)]
        for row in rows[::100]:
            row["validation_reward"] = 0.5
        (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    made = Made(tmp_path)
    made.put("grpo", {"initial_validation_reward": 0.25, "validation_reward": 0.5}, files=log)
    found = report_of(made.store, "tiny/grpo")
    measures = found.trainings[0].measures
    assert {name: len(points) for name, points in measures.items()} == {
        "reward": 500,
        "validation_reward": 10,
        "entropy": 500,
    }
    assert measures["reward"][-1] == (1000, 0.9995)
    page = str(page_of(found))
    for drawn in ("Reward of GRPO", "Held-out reward of GRPO", "Entropy of GRPO", "from 0.250"):
        assert drawn in page


def test_two_gpus_for_an_hour_cost_two_hours_of_one_and_only_measured_energy_counts(made: Made, report: Report) -> None:
    by_stage = {one.stage: one for one in report.costs.stages}
    assert by_stage["pretrain"].usd == 2 * 3.00, "the table's price of an H100"
    assert by_stage["dedup"].usd is None
    assert report.costs.joules == {"cpu": 3.6e6}
    assert by_stage["dedup"].joules == {}
    dearer = report_of(made.store, "tiny", price=7.0)
    assert {one.stage: one.usd for one in dearer.costs.stages}["pretrain"] == 14.0
    assert "as --price says" in dearer.costs.assumption


def test_texts_are_masked_and_can_t_steer(report: Report) -> None:
    text = report.model_dump_json()
    assert MAIL not in text
    assert "<EMAIL_ADDRESS>" in text
    assert not set(BIDI) & set(text) - set("desrever")
    assert "SECRET EXAMPLE" not in text


def test_a_release_tells_nothing_of_texts_places_and_machines_and_is_always_the_same(made: Made) -> None:
    first, second = release_report(made.store, "tiny/export"), release_report(made.store, "tiny/export@1")
    assert first == second
    assert {*first} == {"report.json", "report.html"}
    for content in first.values():
        text = content.decode()
        for private in (MAIL, PATH, "alice/", "private/", "f00d", "second line", "EMAIL_ADDRESS"):
            assert private not in text
    found = Report.model_validate_json(first["report.json"])
    assert found.data is not None
    assert found.data.examples == []
    assert found.data.sources[0].documents["filter"] == 5


def test_of_a_store_with_holes_the_rest_is_told_and_the_holes_are_named(made: Made, tmp_path: Path) -> None:
    for stage in ("download", "dedup", "language", "filter", "tokenizer", "tokenize", "pretrain", "evaluate"):
        store = Store(str(shutil.copytree(made.store.local, tmp_path / stage)))
        store.remove(made.locations[stage])
        found = report_of(store, "tiny")
        assert f"{made.locations[stage]} is gone" in found.gone
        assert found.results is not None
        assert page_of(found).sections
    (store.local / "artifacts" / made.locations["pretrain"] / "manifest.json").write_text("{")
    found = report_of(store, "tiny")
    assert f"{made.locations['pretrain']} is damaged" in found.gone
    with pytest.raises(StoreError, match="neither a ref"):
        report_of(store, "other")


def test_a_file_that_is_lost_leaves_out_only_what_it_held(made: Made, tmp_path: Path) -> None:
    store = Store(str(shutil.copytree(made.store.local, tmp_path / "store")))
    (store.local / "artifacts" / made.locations["pretrain"] / "log.jsonl").unlink()
    found = report_of(store, "tiny")
    assert found.trainings[0].curve == []
    assert found.trainings[0].after == 3.25


@pytest.mark.parametrize("stage", ["download", "filter", "tokenize", "pretrain", "evaluate", "export"])
def test_any_stage_has_a_report(made: Made, stage: str) -> None:
    found = report_of(made.store, f"tiny/{stage}@1")
    check_complete(made.store, found)
    assert page_of(found).sections


def test_a_profile_s_name_is_its_last_artifact(made: Made, tmp_path: Path) -> None:
    assert find(made.store, "tiny") == find(made.store, "tiny@1") == made.locations["export"]
    data = Made(tmp_path / "data", "corpus")
    data.put("download", documents({}, 3))
    assert find(data.store, "corpus") == data.locations["download"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in items:
        yield from places(one, (*path, name))


def test_manifests_of_other_forms_are_read_as_far_as_they_go(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    store, rng = Store(str(made.store.root)), random.Random(1)
    whole = {location: store.manifest(location) for location in made.locations.values()}
    changed: dict[str, Manifest | None] = {}
    monkeypatch.setattr(store, "manifest", lambda location: changed.get(location, whole.get(location)))
    for _ in range(ODD):
        location = rng.choice([*whole])
        manifest = whole[location]
        assert manifest is not None
        data = copy.deepcopy({"counts": manifest.counts, "facts": manifest.facts})
        for _ in range(3):
            path = rng.choice([*places(data)])
            inside: Any = data
            for name in path[:-1]:
                inside = inside[name]
            inside[path[-1]] = rng.choice([None, "odd", -1, 1e308, float("nan"), [], {}, [None, 3], {"x": [1]}, True])
        counts, facts = (data[name] if isinstance(data[name], dict) else {} for name in ("counts", "facts"))
        changed = {location: manifest.model_copy(update={"counts": counts, "facts": facts})}
        found = report_of(store, "tiny", examples=0)
        assert page_of(found).sections
        json.loads(found.model_dump_json())


def test_two_runs_side_by_side_tell_what_differs(made: Made, tmp_path: Path) -> None:
    other = Made(Path(shutil.copytree(made.store.local, tmp_path / "store")), "other")
    other.locations = dict(made.locations)
    other.put(
        "pretrain",
        {"parameters": 1000, "steps": 10, "train_loss": 3.5, "validation_loss": 3.75},
        {"tokens": "tokenize"},
        config={"steps": 10},
    )
    found = comparison_of(other.store, "tiny/pretrain", "other")
    assert [(one.stage, one.key, one.first, one.second) for one in found.settings] == [("pretrain", "steps", "", "10")]
    assert {*found.shared} == {*made.locations.values()} - {
        made.locations[name] for name in ("pretrain", "evaluate", "export")
    }
    numbers = {(one.about, one.name): (one.first, one.second) for one in found.numbers}
    assert numbers["pretrain", "validation loss"] == (3.25, 3.75)
    assert found.untested == "Not both were evaluated."
    page = page_of_both(found)
    assert [section.title for section in page.sections] == ["Settings", "Numbers", "Training", "Evaluation", "Lineage"]


def test_without_the_packages_that_draw_the_numbers_are_told_and_the_error_names_the_extra(
    made: Made, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "MODULES", {"report": ("no_such_module",)})
    with pytest.raises(ConfigError, match="needs the extra report") as error:
        page_of(report).render()
    assert "gristmill[report]" in error.value.remedy
    assert [*release_report(made.store, "tiny/export")] == ["report.json"]


def test_the_command_writes_a_page_or_prints_numbers(made: Made, report: Report, tmp_path: Path) -> None:
    store = f"--store={made.store.root}"
    printed = gristmill("report", "tiny", "--json", store)
    assert Report.model_validate_json(printed.stdout) == report
    written = gristmill("report", "tiny/export", "tiny/pretrain", f"--output={tmp_path / 'page.html'}", store)
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    for more in (["--json", "--output=x"], ["tiny", "--examples=1"]):
        refused = gristmill("report", "tiny", *more, store)
        assert refused.returncode == 1
        assert "What to do:" in refused.stderr


def test_hostile_names_reach_nobody_s_terminal(made: Made) -> None:
    with pytest.raises(GristmillError) as error:
        report_of(made.store, HOSTILE)
    assert not set(BIDI[0]) & set(str(error.value))


@pytest.mark.parametrize(
    "path",
    [
        "/home/jane roe/x",
        "~jane/x",
        "file:///home/jane/x",
        "C:\\Users\\jane roe",
        "\\\\host\\jane",
        "/home/jane",
        "nas:/jane",
    ],
)
def test_a_release_names_no_place_on_a_disk_in_whatever_text(path: str) -> None:
    for text in (
        path,
        f"['{path}', 'b']",
        f'{{"a": "{path}"}}',
        f"['{path[:-1]}…",
        f"files={path.replace(' ', '')} and b",
    ):
        assert not {"jane", "roe", "Users"} & {*re.findall(r"\w+", cleaned(text, release=True))}
    for text in ("https://host/a/b", "s3://b/a", "['hf://datasets/a']", "a/b at 5 / s"):
        assert cleaned(text, release=True) == text
