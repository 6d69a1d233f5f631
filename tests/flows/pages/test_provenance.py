"""A release's provenance is in its key, and agrees with the manifests and the profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.chain import released_link
from flows.provenance import provenance_of
from profiles.load import load
from storage.artifact import Artifact
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.export.card.licences import by_licence, stated
from tasks.export.card.page import _training, model_card
from tasks.export.card.provenance import Synthetic
from tasks.export.config import ExportConfig
from tests.tasks.export.test_card import RESULT

HUB = """
extends: tiny
name: mine
download:
  sources:
    - {kind: hub, name: web, dataset: owner/web, revision: 0123456789abcdef}
    - {kind: files, name: talk, role: instructions, paths: [talk.jsonl]}
    - {kind: files, name: votes, role: preferences, paths: [votes.jsonl]}
export:
  licences: {web: ODC-By-1.0}
"""


MINE = {"name": "talk", "role": "instructions", "paths": ["talk.jsonl"]}


def made(stage: str, counts: dict[str, Any], **config: Any) -> Artifact:
    payload = KeyPayload(stage=stage, version=1, config=config, inputs={})
    manifest = Manifest(key="0" * 32, payload=payload, digest="0" * 64, files={}, counts=counts, created="")
    return Artifact(Path(), "0" * 64, manifest)


def kept(number: int) -> dict[str, Any]:
    return {"documents": {"in": 100, "kept": number}}


STAGES = {
    "download": made("download", kept(100)),
    "dedup": made("dedup", kept(90)),
    "filter": made("filter", kept(80)),
    "tokenize": made("tokenize", {**kept(80), "train": {"tokens": 1000}, "validation": {"tokens": 10}}),
}
LINKS = {
    "base": made("pretrain", {"steps": 5, "train_loss": 2.5, "precision": "bfloat16", "summary": "x"}),
    "sft": made("sft", {"steps": 3, "precision": "float32"}, precision="auto"),
    "dpo": made("dpo", {"steps": 2}, precision="bfloat16"),
}


def test_sources_counts_and_precision_are_those_of_the_link_that_is_released(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(HUB)
    profile = load(str(tmp_path / "mine.yaml"))
    told = provenance_of(profile, STAGES, LINKS, "sft")
    assert [(one.name, one.used_as, one.dataset, one.licence) for one in told.sources] == [
        ("web", ["documents"], "owner/web", "ODC-By-1.0"),
        ("talk", ["instructions"], "", ""),
    ]
    assert told.funnel == {
        "download, documents": 100,
        "dedup, documents": 90,
        "filter, documents": 80,
        "tokenize, tokens train": 1000,
        "tokenize, tokens validation": 10,
    }
    assert [(one.stage, one.measures) for one in told.training] == [
        ("pretrain", {"steps": 5, "train_loss": 2.5}),
        ("sft", {"steps": 3}),
    ]
    assert (told.precision, told.languages) == ("float32", ["en"])
    last = provenance_of(profile, STAGES, LINKS, "dpo")
    assert last.precision == "bfloat16", "before it was counted, a config that is not auto said so"
    assert [one.name for one in last.sources] == ["web", "talk", "votes"]


def test_how_a_stage_changed_the_model_is_told(tmp_path: Path) -> None:
    given = {
        "extends": "tiny",
        "name": "mine",
        "dpo": None,
        "download": {"sources": [{"kind": "embedded", "instructions": 0}, {"kind": "files", **MINE}]},
        "sft": {"adapter": {"rank": 4, "whole": ["embedding", "head"]}},
        "grpo": {"rewards": [{"kind": "exact"}, {"kind": "length", "target": 20}]},
        "merge": {"models": [{"link": "sft", "weight": 0.3}, {"link": "grpo", "weight": 0.7}], "method": "dare_ties"},
        "chain": ["sft", "grpo", "merge"],
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(given))
    profile = load(str(tmp_path / "mine.yaml"))
    links = {**LINKS, "grpo": made("grpo", {"steps": 2}), "merge": made("merge", {}), "dpo": LINKS["dpo"]}
    told = provenance_of(profile, STAGES, {name: links[name] for name in ("base", "sft", "grpo", "merge")}, "merge")
    assert {one.name for one in told.sources if "instructions" in one.used_as} == {"talk"}
    assert {one.stage: one.how for one in told.training} == {
        "pretrain": "",
        "sft": "LoRA of rank 4, and embedding, head whole",
        "grpo": "rewards: exact, length",
        "merge": "dare_ties of 0.3 × sft, 0.7 × grpo",
    }
    card = model_card(ExportConfig(provenance=told), {"model_type": "llama"}, None, RESULT, {})
    assert "pretrained from scratch, fine-tuned on instructions, aligned by grpo, merged (dare\\_ties of 0.3" in card
    assert "| sft | LoRA of rank 4, and embedding, head whole | steps 3 |" in card


def test_text_that_a_model_wrote_is_counted_and_has_the_licence_of_its_originals(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(HUB)
    synthesise = "synthesise={model: writer-8b, prompts: [{name: rewrite}, {name: summary}]}"
    profile = load(str(tmp_path / "mine.yaml"), [synthesise, "runtime.synthesise.url=http://host/v1"])
    tokens = {"web": 900, "synthetic/rewrite": 80, "synthetic/summary": 20, "all": 1000}
    rows = [{"source": name, "split": "train", "documents": 5, "tokens": number} for name, number in tokens.items()]
    held_out = {"source": "all", "split": "validation", "documents": 1, "tokens": 10}
    licences = [{"source": "synthetic/rewrite", "licence": "CC-BY-4.0", "documents": 9}]
    stages = {
        **STAGES,
        "synthesise": made("synthesise", {**kept(120), "tables": {"Documents by licence": licences}}),
        "tokenize": made("tokenize", {**kept(80), "tables": {"Tokens by source and split": [*rows, held_out]}}),
    }
    told = provenance_of(profile, stages, LINKS, "sft")
    assert told.synthetic == Synthetic(
        model="writer-8b", prompts=["rewrite", "summary"], documents=10, tokens=100, share=0.1
    )
    assert profile.synthesise is not None
    assert stated(told) == {
        **dict.fromkeys(("web", *profile.synthesise.new_sources), "ODC-By-1.0"),
        "talk": "not stated",
    }
    assert by_licence(told) == {"CC-BY-4.0": 9}
    assert told.funnel["synthesise, documents"] == 120
    card = " ".join(_training(told, {"dtype": "float32"}))
    assert "writer-8b wrote from documents of the other sources, by the prompts rewrite, summary" in card
    assert "They are 10 documents with 100 tokens, 10.0% of all." in card
    early = provenance_of(profile, {}, LINKS, "sft").synthetic
    assert early == Synthetic(model="writer-8b", prompts=["rewrite", "summary"])
    assert "synthetic" not in provenance_of(load("tiny"), STAGES, LINKS, "sft").model_dump()


def test_the_last_link_is_released_unless_the_profile_names_another() -> None:
    assert released_link(load("tiny"), LINKS) == "dpo"
    assert released_link(load("tiny", ["export.link=sft"]), LINKS) == "sft"


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ({"sft": (3.0, 2.5), "dpo": (0.7, 0.6)}, "dpo"),
        ({"sft": (3.0, 2.5), "dpo": (0.6, 0.7)}, "sft"),
        ({"sft": (2.5, 3.0), "dpo": (0.7, 0.6)}, "dpo"),
        ({"sft": (2.5, 3.0), "dpo": (0.6, 0.7)}, "base"),
        ({"sft": (None, None), "dpo": (0.6, 0.7)}, "sft"),
    ],
)
def test_the_best_link_is_the_last_that_did_no_harm(losses: dict[str, tuple[float, float]], best: str) -> None:
    measured = {
        name: made(name, {"initial_validation_loss": first, "validation_loss": last})
        for name, (first, last) in losses.items()
    }
    assert released_link(load("tiny", ["export.link=best"]), {"base": LINKS["base"], **measured}) == best


def test_embedded_sources_bring_their_licences_and_a_profile_may_correct_them() -> None:
    profile = load("tiny", ["export.licences.packages=mixed"])
    found = {one.name: one.licence for one in provenance_of(profile, STAGES, LINKS, "dpo").sources}
    assert found["encyclopedia-en"].startswith("CC-BY-SA-4.0")
    assert found["small-talk"].startswith("BSD-3-Clause")
    assert found["packages"] == "mixed"


def test_a_source_of_which_the_filter_left_nothing_binds_nobody() -> None:
    rows = [
        {"source": source, "split": split, "tokens": tokens}
        for source, split, tokens in (("speeches", "train", 9), ("speeches", "validation", 0), ("packages", "train", 0))
    ]
    tokens = made("tokenize", {**kept(80), "tables": {"Tokens by source and split": rows}})
    found = provenance_of(load("tiny"), {**STAGES, "tokenize": tokens}, LINKS, "dpo").sources
    used = {one.name: one.used_as for one in found}
    assert used["speeches"] == ["documents"]
    assert used["encyclopedia-en"] == ["instructions", "preferences"], "its titles are asked about"
    assert not {"packages", "encyclopedia-fr", "encyclopedia-es"} & used.keys()


def test_of_a_base_there_are_no_documents_but_its_name_and_licence() -> None:
    profile = load("finetune", ["export.licences.base=Apache-2.0"])
    told = provenance_of(profile, {}, {"base": made("base", {}), "sft": LINKS["sft"]}, "sft")
    assert (told.base, told.base_licence) == ("SmolLM2-135M-Instruct.Q4_1.gguf", "Apache-2.0")
    assert all(one.used_as == ["instructions"] for one in told.sources)
    assert (told.funnel, told.languages) == ({}, [])
    assert provenance_of(profile, {}, {"base": made("base", {})}, "base").precision == ""


def test_licences_of_sources_that_a_profile_replaces_say_nothing_of_its_own(tmp_path: Path) -> None:
    profile = load("tiny", ["export.licences.web=MIT"])
    assert "web" not in {one.name for one in provenance_of(profile, STAGES, LINKS, "dpo").sources}


def test_what_is_told_is_in_the_key() -> None:
    config = load("tiny").export
    assert config is not None
    profile = load("tiny")
    one = config.with_provenance(provenance_of(profile, STAGES, LINKS, "dpo"))
    other = config.with_provenance(provenance_of(profile, {**STAGES, "dedup": made("dedup", kept(89))}, LINKS, "dpo"))
    assert one.model_dump() != other.model_dump()
    assert config.model_dump().keys() < one.model_dump().keys()


def test_licences_that_documents_state_are_those_of_sources_with_tokens(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(HUB)
    profile = load(str(tmp_path / "mine.yaml"))
    rows = [
        {"source": "web", "licence": "CC-BY-4.0", "documents": 3},
        {"source": "gone", "licence": "MIT", "documents": 2},
    ]
    raw = made("download", {**kept(100), "tables": {"Documents by licence": rows}})
    tokens = made("tokenize", {"tables": {"Tokens by source and split": [{"source": "web", "tokens": 5}]}})
    told = provenance_of(profile, {**STAGES, "download": raw, "tokenize": tokens}, LINKS, "sft")
    assert [one.model_dump() for one in told.document_licences] == rows[:1]
    before = provenance_of(profile, STAGES, LINKS, "sft")
    assert "document_licences" not in before.model_dump()  # so that older keys stay the same
