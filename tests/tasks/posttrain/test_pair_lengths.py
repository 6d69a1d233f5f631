"""Pairs that are too long for the model are refused before it is trained."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from flows.plan import plan
from flows.session import session_of
from profiles.load import load
from storage.artifact import Artifact
from storage.errors import ConfigError, EmptyOutput
from storage.store import Store
from tasks.posttrain.methods.dpo import DpoConfig
from tasks.posttrain.methods.grpo import GrpoConfig
from tasks.posttrain.methods.kto import KtoConfig
from tasks.posttrain.methods.sft import SftConfig
from tasks.posttrain.pair_lengths import check_pairs
from tasks.posttrain.rewards.config import RegexReward
from tasks.stage.display.progress import Observer
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.posttrain.uneven import long_answer, uneven_pairs, uneven_rows
from tests.tasks.tiny_model import make_tokenizer, question, write_rows


def test_how_many_pairs_fit_at_which_context_is_told_with_the_tokenizer_alone(tmp_path: Path) -> None:
    long = [*question("fox"), long_answer("wood", 20)]
    rows = [*uneven_rows(), {"id": "long", "source": "test", "messages": long}]
    preferences = [*uneven_pairs(), {**uneven_pairs()[0], "id": "long", "chosen": long[1:]}]
    write_rows(tmp_path / "pairs" / "instructions" / "all.jsonl", rows)
    write_rows(tmp_path / "pairs" / "preferences" / "all.jsonl", preferences)
    pairs, tokenizer = Artifact.at(tmp_path / "pairs"), Artifact.at(make_tokenizer(tmp_path / "tokenizer"))
    check_pairs({"sft": SftConfig(), "dpo": DpoConfig()}, pairs, tokenizer, 256)
    lenient = SftConfig(max_dropped_share=1.0)
    told = r"\d+ of 85 {} can't be used .* overlong.* 84 would fit into 128 tokens, 85 into 256\."
    with pytest.raises(EmptyOutput, match=told.format("instructions")):
        check_pairs({"sft": SftConfig(max_length=40)}, pairs, tokenizer, 256)
    with pytest.raises(EmptyOutput, match=told.format("preferences")):
        check_pairs({"sft": lenient, "dpo": DpoConfig(max_dropped_share=0.1)}, pairs, tokenizer, 40)
    check_pairs({"sft": lenient}, pairs, tokenizer, 40)
    with pytest.raises(ConfigError, match=r"sft\.max_length is 200, but the model's context is 128"):
        check_pairs({"sft": SftConfig(max_length=200)}, pairs, tokenizer, 128)
    for grpo, told in (
        (GrpoConfig(max_new_tokens=256), r"grpo\.max_new_tokens is 256, which leaves none of 256 tokens for a prompt"),
        (GrpoConfig(rewards=[RegexReward(pattern="(ZQZ)")]), r"'\(ZQZ\)' matches none of \d+ references"),
        (GrpoConfig(validation_share=1e-9), r"grpo\.max_drop watches .* but none of \d+ is held out"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_pairs({"grpo": grpo}, pairs, tokenizer, 256)
    desirable = [{**pair, "completion": pair["chosen"], "label": True} for pair in uneven_pairs()]
    write_rows(tmp_path / "labelled" / "labelled" / "all.jsonl", desirable)
    with pytest.raises(ConfigError, match=r"(\d+) of \1 training answers are labelled as desirable"):
        check_pairs({"kto": KtoConfig()}, Artifact.at(tmp_path / "labelled"), tokenizer, 256)


def test_many_pairs_that_do_not_fit_are_warned_of_before_anything_is_trained(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs" / "instructions" / "all.jsonl", uneven_rows())
    pairs, tokenizer = Artifact.at(tmp_path / "pairs"), Artifact.at(make_tokenizer(tmp_path / "tokenizer"))
    told: list[str] = []

    class Listening(Observer):
        def warned(self, stage: str, message: str) -> None:
            told.append(f"{stage}: {message}")

    session = Session(Store(str(tmp_path / "store")), runtime_of(), "mine", observer=Listening())
    with open_session(session):
        for length in (256, 40):
            check_pairs({"sft": SftConfig(max_dropped_share=1.0, max_length=length)}, pairs, tokenizer, 256)
    (warning,) = told
    assert re.match(r"sft: (\d+) of 84 pairs can't be used: \1 longer than 40 tokens\. Raise max_length", warning)


def test_a_run_asks_before_it_pretrains_unless_it_ends_there(tmp_path: Path) -> None:
    profile = load("smoke", [f"runtime.store={tmp_path / 'store'}"])
    for until, asks in ((None, True), ("dpo", True), ("pretrain", False)):
        session = replace(session_of(profile, until), checks={})
        plan(profile, session)
        assert ("pretrain" in session.checks) == asks, until
