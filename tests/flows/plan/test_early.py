"""Refusals and notes of a plan before anything is made: stages without a source, sources without a reader, columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.early import check_gated_sources, check_rollouts, told_of_unread
from flows.estimates.plan_notes import filter_notes
from flows.plan import plan
from flows.provenance import TOKENS
from profiles.load import load
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import ConfigError, GristmillError, SourceError
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.evaluate import EvaluateConfig
from tasks.posttrain.methods.grpo import GrpoConfig
from tasks.significance.gate_config import BITS
from tests.tasks.tiny_model import make_model

DOCUMENT = {"text": "A document of some words."}
INSTRUCTION = {"instruction": "Name a river.", "output": "The Danube."}
PREFERENCE = {"prompt": "Name a river.", "chosen": "The Danube.", "rejected": "No."}


def written(folder: Path, *sources: str, extends: str = "smoke", more: str = "") -> Profile:
    """A profile in a file of its own, with these sources of files named by what is in them."""
    rows = {"documents": DOCUMENT, "instructions": INSTRUCTION, "preferences": PREFERENCE, "odd": {"body": "x", "n": 1}}
    rows["number"] = {"text": 7}
    lines = []
    for source in sources:
        role, _, kind = source.partition("=")
        path = folder / f"{role}-{kind or role}.jsonl"
        path.write_text(json.dumps(rows[kind or role]) + "\n" if kind != "nothing" else "")
        lines.append(f"    - {{kind: files, name: {role}-{kind or role}, role: {role}, paths: ['{path}']}}")
    text = [f"extends: {extends}", "download:", "  sources:", *lines, "runtime:", f"  store: {folder / 'store'}", more]
    (folder / "mine.yaml").write_text("\n".join(text) + "\n")
    return load(str(folder / "mine.yaml"))


@pytest.mark.parametrize(
    ("sources", "more", "kind", "told"),
    [
        (
            ["documents"],
            "",
            ConfigError,
            "sft reads instructions and dpo reads preferences, but no source.*set sft and dpo to null",
        ),
        (["documents", "instructions"], "", ConfigError, "dpo reads preferences, but no source"),
        (["documents"], "sft: null\ndpo: null\nkto: {}", ConfigError, "kto reads preferences"),
        (["documents=odd", "instructions", "preferences"], "", SourceError, "lack the column text.*perhaps body"),
        (["documents=number", "instructions", "preferences"], "", SourceError, "can't be used.*no_text"),
        (["documents=nothing", "instructions", "preferences"], "", SourceError, "is empty"),
        (["documents=instructions", "instructions", "preferences"], "", SourceError, "write `role: instructions`"),
        (["documents", "instructions=odd", "preferences"], "", SourceError, "lack the keys of instructions"),
        (["documents", "instructions", "preferences=instructions"], "", SourceError, "lack the keys of preferences"),
    ],
)
def test_what_a_stage_lacks_ends_the_plan(
    sources: list[str], more: str, kind: type[GristmillError], told: str, tmp_path: Path
) -> None:
    profile = written(tmp_path, *sources, more=more)
    with pytest.raises(kind, match=f"(?s){told}"):
        plan(profile)
    assert not (tmp_path / "store").exists()


def test_what_no_stage_reads_is_told(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    base = f"base:\n  folder: {tmp_path / 'base'}\npretrain: null\ndpo: null\nevaluate: null"
    profile = written(tmp_path, "documents", "instructions", more=base)
    (told,) = told_of_unread(profile, profile.stage_names)
    assert told.startswith("No stage reads the documents of documents-documents. The profile begins with a base model")
    assert list(told_of_unread(profile, ("download",))) == [], "a run that ends early"
    whole = written(tmp_path, "documents", "instructions", "preferences")
    assert list(told_of_unread(whole, whole.stage_names)) == []


def test_documents_that_the_mixture_leaves_out_are_named_before_the_run(tmp_path: Path) -> None:
    sources = ("documents", "instructions", "preferences", "documents=odd")

    def mixed(**changes: str) -> list[str]:
        texts = "".join(f"\n  {name}: {value}" for name, value in changes.items())
        profile = written(tmp_path, *sources, more=f"pretrain:{texts}")
        return list(told_of_unread(profile, profile.names_to("pretrain")))

    (said,) = mixed(mixture="{documents-documents: 1}")
    assert said.startswith("pretrain.mixture leaves out documents-odd: ")
    later = "[{from_step: 2, mixture: {documents-odd: 1}}]"
    assert mixed(mixture="{documents-documents: 1}", curriculum=later) == []
    assert mixed(mixture="{documents-documents: 1, documents-odd: 2}") == []
    unmixed = written(tmp_path, *sources)
    assert list(told_of_unread(unmixed, unmixed.names_to("pretrain"))) == []
    left = written(tmp_path, *sources, more="pretrain:\n  mixture: {documents-documents: 1}")
    assert list(told_of_unread(left, left.names_to("filter"))) == [], "a run that ends before"


def test_documents_in_files_are_no_pages_of_the_web(tmp_path: Path) -> None:
    mine = written(tmp_path, "documents", "instructions", "preferences")
    assert mine.filter is not None
    assert (mine.filter.preset, mine.filter.c4, mine.filter.toxicity) == ("clean", None, None)
    assert mine.filter.language is not None
    assert mine.filter.pii is not None
    web = written(tmp_path, "documents", more="filter: {preset: web}\nsft: null\ndpo: null")
    assert web.filter is not None
    assert web.filter.gopher_quality is not None
    assert web.filter.gopher_quality.min_words == 50, "not the parent's"
    own = written(tmp_path, "documents", more="filter: {toxicity: null}")
    assert own.filter is not None
    assert (own.filter.preset, own.filter.c4 is None) == (None, False), "who says something of the filter means it"
    assert len(list(filter_notes(mine))) == 1
    ruled = written(tmp_path, "documents", more="filter: {preset: clean, c4: {}}\nsft: null\ndpo: null")
    assert list(filter_notes(ruled)) == [], "some rules for the web stand beside it"
    written(tmp_path, "documents", more="filter: {toxicity: null}")
    (tmp_path / "child.yaml").write_text("extends: mine.yaml\n")
    child = load(str(tmp_path / "child.yaml"))
    assert child.filter is not None
    assert child.filter.preset is None
    assert load("tiny").filter.preset is None  # type: ignore[union-attr]


def test_a_gate_on_a_source_without_held_out_text_is_refused_before_the_training(tmp_path: Path) -> None:
    rows = [
        {"source": source, "split": split, "tokens": tokens}
        for source, split, tokens in (("papers", "train", 9), ("papers", "validation", 2), ("mails", "train", 9))
    ]
    payload = KeyPayload(stage="tokenize", version=1, config={}, inputs={})
    counts = {"tables": {TOKENS: rows}}
    made = Manifest(key=payload.key(), payload=payload, digest="0" * 64, files={}, counts=counts, created="")
    gated = {
        name: EvaluateConfig(gates=[{"task": BITS, "source": name, "at_most": 2.0}]) for name in ("papers", "mails")
    }
    for tokens in (Artifact(tmp_path, "", made), Artifact(tmp_path, "")):  # also before it is made
        check_gated_sources(gated["papers"], tokens)
        check_gated_sources(None, tokens)
    with pytest.raises(ConfigError, match=r"evaluate\.gates\.0\.source is mails, but no document of mails is held out"):
        check_gated_sources(gated["mails"], Artifact(tmp_path, "", made))


def test_a_model_that_llama_cpp_cant_sample_from_is_refused_before_it_is_tuned(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", family="mistral", sliding_window=32)
    reached = {"grpo": GrpoConfig.model_validate({"rollout": {"engine": "llama.cpp"}})}
    with pytest.raises(ConfigError, match=r"grpo.rollout.engine is llama.cpp. .* sliding window") as caught:
        check_rollouts(reached, model)
    assert caught.value.remedy == "Choose another engine."
    check_rollouts({"grpo": GrpoConfig()}, model)
