"""`gristmill filter`: it shows the documents that the rule decides, and its counts are the filter's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.estimates.parts import parts_of, stored_parts
from flows.estimates.planned_stage import PlannedStage
from storage.shards.documents import Document, read_documents, shard_name, write_documents
from storage.store import Store
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.measure import parts
from tasks.stage.session import Session, open_session
from tests.flows.commands.test_cli import gristmill, publish
from tests.runtimes import runtime_of

SENTENCE = "The river begins in the hills and flows to the sea, and that is all they have to say of it."
FRENCH = "La rivière commence dans les collines et coule vers la mer, et les gens vivent le long de ses rives."
SIZES = range(2, 12)  # sentences: 21 words and a number each
SETTINGS = {
    "gopher_repetition": None,
    "gopher_quality": {"min_words": 50},
    "c4": None,
    "fineweb": None,
    "toxicity": None,
}


def text(sentences: int, source: str) -> str:
    return " ".join(f"{SENTENCE[:-1]} in {source} {number}." for number in range(sentences))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with a filter artifact of the profile tiny: ten documents each of two sources, and one in French."""
    folder = tmp_path_factory.mktemp("look")
    store = Store(str(folder / "store"))
    documents = [Document.new(text(size, source), source) for source in ("hills", "coast") for size in SIZES]
    documents.append(Document.new(f"{FRENCH} {FRENCH} {FRENCH}", "coast"))
    documents.append(Document.new(f"{text(1, 'letters')} Write to john.roe@mail.com.", "letters"))
    documents.append(Document.new(f"{text(9, 'letters')} Write to jane.doe@mail.com.", "letters"))
    files = {}
    for number in range(2):
        write_documents(folder / shard_name(number), documents[number::2])
        files[f"documents/{shard_name(number)}"] = (folder / shard_name(number)).read_bytes()
    unique = store.get(publish(store, "dedup", files))
    raw = store.get(publish(store, "download", {"benchmarks/none.jsonl": b""}))
    with open_session(Session(store, runtime_of(workers=1), "tiny")):
        config = FilterConfig.model_validate(SETTINGS)
        filter_documents.materialize(config, [unique.part("documents"), raw.part("benchmarks")])
    return store


OFF = [f"--set=filter.{group}=null" for group in ("gopher_repetition", "c4", "fineweb", "toxicity")]


def looked(store: Store, *arguments: str) -> str:
    done = gristmill("filter", *arguments, *OFF, "--set=filter.gopher_quality.min_words=50", f"--store={store.root}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept(store: Store) -> int:
    (artifact,) = [store.get(location) for location in store.locations() if location.startswith("filter/")]
    return sum(1 for path in artifact.part("documents").files("*.parquet") for _ in read_documents(path))


def test_the_nearest_documents_on_both_sides_are_shown(store: Store) -> None:
    told = looked(store, "look", "gopher_quality.min_words", "tiny", "--documents=1", "--source=hills")
    words = [len(text(size, "hills").split()) for size in SIZES]
    above, below = min(w for w in words if w >= 50), max(w for w in words if w < 50)
    passing, failing = told.split("Kept by the rule")[1].split("Removed by the rule")
    assert f"\n{above}  " in passing
    assert f"\n{below}  " in failing
    assert "coast" not in passing + failing
    assert "rivière" not in told, "another rule decides on it"


def test_another_threshold_is_counted_as_the_filter_would(store: Store) -> None:
    told = looked(store, "look", "gopher_quality.min_words", "tiny", "--threshold=200")
    words = [len(text(size, "hills").split()) for size in SIZES]
    now, then = (sum(w >= threshold for w in words) for threshold in (50, 200))
    row = next(line.split() for line in told.splitlines() if line.startswith("hills"))
    assert row[1:] == [str(len(words)), str(now), str(then), str(now - then), "0"]
    total = next(line.split() for line in told.splitlines() if line.startswith("all"))
    assert int(total[2]) == kept(store)


def test_the_page_has_the_documents_in_full_and_no_personal_data(store: Store, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told = looked(store, "look", "language", "tiny", f"--page={page}", "--documents=50")
    assert "&lt;EMAIL_ADDRESS&gt;" in page.read_text()
    assert "jane.doe" not in page.read_text() + told
    told = looked(store, "look", "gopher_quality.min_words", "tiny", f"--page={page}", "--documents=50")
    removed = page.read_text().split("Removed by the rule")[1]
    assert "Write to &lt;EMAIL_ADDRESS&gt;" in removed, "it was not searched before"
    assert "john.roe" not in removed + told
    assert text(11, "coast") not in told
    looked(store, "look", "gopher_quality.min_words", "tiny", "--threshold=250", f"--page={page}")
    assert text(11, "coast") in page.read_text()


def test_a_rule_over_what_is_measured_last_is_shown_on_what_was_measured(store: Store) -> None:
    told = looked(store, "look", "pii.max_findings", "tiny", "--set=filter.pii.max_findings=0", "--documents=50")
    passing, failing = told.split("Kept by the rule")[1].split("Removed by the rule")
    assert failing.count(" from letters") == 1
    shown = sum(passing.count(f" from {source}\n") for source in ("hills", "coast", "letters"))
    assert shown == kept(store) - 1, "of those that other rules remove none was measured"
    spread = [line.split() for line in told.splitlines() if line.startswith(("coast", "letters"))]
    assert ["letters", *["1"] * 7] in spread
    assert "could not be measured" not in told


def test_documents_that_another_threshold_lets_in_were_not_measured_for_what_comes_last(store: Store) -> None:
    lower = ("look", "gopher_quality.min_words", "tiny", "--threshold=40")
    assert "were not measured" not in looked(store, *lower), "no rule asks for it"
    told = looked(store, *lower, "--set=filter.pii.max_findings=5")
    newly = next(line.split()[-1] for line in told.splitlines() if line.startswith("all"))
    assert int(newly) > 0
    assert f"{newly} of the newly kept were not measured for pii, pii_metadata" in " ".join(told.split())


def test_rules_are_listed_with_their_thresholds(store: Store) -> None:
    listed = [line.split() for line in looked(store, "rules", "tiny").splitlines()]
    assert ["gopher_quality.min_words", "50"] in listed
    assert ["language"] in listed
    assert not any(line[0].startswith("c4.") for line in listed)
    own = "filter.languages={en: {gopher_quality: {max_words: null, min_words: 9}}}"
    listed = [line.split() for line in looked(store, "rules", "tiny", f"--set={own}").splitlines()]
    place = listed.index(["gopher_quality.max_words", "100000"])
    assert listed[place + 1] == ["gopher_quality.max_words.en", "off"]
    assert ["gopher_quality.min_words.en", "9"] in listed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["gopher_quality.min_wordz"], "Did you mean gopher_quality.min_words"),
        (["language", "--threshold=1"], "doesn't compare numbers"),
        (["gopher_quality.min_words", "--threshold=nan"], "is not a finite number"),
        (["language", "--source=nowhere"], "The sources are coast, hills, letters"),
        (["language", "--set=filter.language.measure.piece_bytes=300"], "with other settings"),
        (["language", "--set=filter.perplexity={}"], "perplexity was not measured"),
        (["language", "--set=filter.measured_last=[]"], "with other settings"),
        (["language", "--set=name=other"], "lacks filtered documents of other"),
        (["language", "--set=filter=null"], "has no filter"),
    ],
)
def test_what_cannot_be_looked_at_is_said(store: Store, arguments: list[str], named: str) -> None:
    done = gristmill("filter", "look", arguments[0], "tiny", f"--store={store.root}", *OFF, *arguments[1:])
    assert done.returncode == 1
    assert named in done.stderr.replace("\n", " ")


def test_a_plan_knows_which_signals_another_setting_measures_anew(store: Store) -> None:
    places = {location.partition("/")[0]: location for location in store.locations()}
    earlier = store.manifest(places["filter"])
    assert earlier is not None
    inputs = store.get(places["dedup"]).part("documents"), store.get(places["download"]).part("benchmarks")

    manifests = dict(store.manifests())

    def missing(*refresh: str, **settings: Any) -> set[str]:
        config = FilterConfig.model_validate({**SETTINGS, **settings})
        payload, wanted = filter_documents.payload(config, inputs), parts(config)
        line = PlannedStage("filter", False, "", payload, earlier, inputs, config, refresh=frozenset(refresh))
        return {*wanted} - stored_parts(manifests, line, parts_of(manifests, earlier), wanted)

    last = {"passed", "pii", "pii_metadata"}  # measured on documents that pass the other rules
    assert missing() == set()
    assert missing(gopher_quality={"min_words": 60}) == last
    assert missing(form={"as_datatrove": True}) == {*last, "form"}
    assert missing(toxicity={}) == {*last, "toxicity", "toxicity_model"}
    assert missing("filter", "form") == {"form"}


def test_a_signal_of_the_users_own_is_looked_at_too(store: Store, tmp_path: Path) -> None:
    hook = tmp_path / "rules.py"
    hook.write_text("def measure(texts):\n    return {'length': [len(text) for text in texts]}\n")
    config = FilterConfig.model_validate(
        {**SETTINGS, "signals": {"long": {"measure": {"kind": "python", "file": str(hook), "columns": ["length"]}}}}
    )
    with open_session(Session(store, runtime_of(workers=1), "own")):
        inputs = [store.get(location) for location in store.locations() if not location.startswith("filter/")]
        named = {artifact.location.partition("/")[0]: artifact for artifact in inputs}
        filter_documents.materialize(config, [named["dedup"].part("documents"), named["download"].part("benchmarks")])
    profile = tmp_path / "own.yaml"
    profile.write_text(
        "extends: tiny\nname: own\nfilter:\n  signals:\n    long:\n      measure: {kind: python, file: "
        f"{hook}, columns: [length]}}\n      min: {{length: 1000}}\n"
    )
    done = gristmill(
        "filter",
        "look",
        "signals.long.min_length",
        str(profile),
        *OFF,
        "--set=filter.gopher_quality.min_words=50",
        f"--store={store.root}",
    )
    assert done.returncode == 0, done.stderr
    assert "signals.long.min_length, threshold 1000" in done.stdout
