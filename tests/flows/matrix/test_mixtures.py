"""Swarms of mixtures: what a profile allows, and which runs of an earlier swarm serve a wider one."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from flows.matrix.earlier import Earlier
from flows.matrix.mixtures import (
    DRAWN,
    AskedMix,
    check_matrix,
    check_target,
    grounds_of,
    reads,
    swarm_matrix,
    swarm_of,
    target_on,
)
from flows.provenance import TOKENS
from profiles.load import load
from storage.errors import ConfigError
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.pretrain.loader.epochs import planned

SETS = ("pretrain.steps=400", "pretrain.validation_every=400")


def asked(*sets: str, **given: Any) -> AskedMix:
    return AskedMix("smoke", (*SETS, *sets), **given)


def counted(**tokens: int) -> Manifest:
    """Token shards of so many tokens by source."""
    rows = [{"source": name.replace("_", "-"), "split": "train", "tokens": count} for name, count in tokens.items()]
    payload = KeyPayload(stage="tokenize", version=3, config={}, inputs={})
    return Manifest(
        key=payload.key(), payload=payload, digest="0" * 64, files={}, counts={"tables": {TOKENS: rows}}, created=""
    )


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"sources": ("speeches", "spech")}, r"names spech.*Did you mean speeches"),
        ({"sources": ("speeches",)}, "One source of documents"),
        ({"sources": ("speeches", "packages", "speeches")}, "--sources names speeches twice"),
        ({"target": ("speeches=1", "speeches=2")}, "--target names speeches twice"),
        ({"target": ("speeches=inf",)}, "speeches=inf: a weight is a finite number"),
        ({"seeds": 201}, "201 seeds"),
        ({"full": True, "seeds": 0}, "--full is of the check"),
        ({"runs": 1001}, "1,001 runs are more than"),
        *(({"proxy": (f"{key}=null",)}, f"--proxy {key}: mix itself sets it") for key in DRAWN),
        ({"proxy": ("pretrain.steps",)}, "--proxy pretrain.steps lacks a value"),
        ({"runs": 3}, "3 runs are too few"),
        ({"runs": 4, "sources": ("speeches", "packages", "encyclopedia-en")}, r"4 runs are too few.*the default is 24"),
        ({"target": ("speeches", "books")}, r"--target names books"),
        ({"target": ("speeches=x",)}, "x is not a weight"),
        ({"target": ("speeches=0",)}, "above 0"),
        ({"target": ("speeches=1", "packages")}, "with and without weights"),
        ({"target": ("arc_easy",)}, "no weights"),
        ({"proxy": ("tokenizer.vocab_size=512",)}, "--proxy tokenizer.vocab_size is no setting of pretraining"),
        ({"proxy": ("pretrain.depth=2",)}, "unknown key pretrain.depth"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_work(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _ = asked(**given).reference
    assert re.search(wrong, str(refused.value))


def test_a_profile_that_mix_cannot_answer_for_is_refused() -> None:
    for profile, wrong in {"finetune": "trains on no documents", "recipes/mixture": "curriculum changes"}.items():
        with pytest.raises(ConfigError, match=wrong):
            _ = AskedMix(profile).reference
    assert AskedMix("recipes/mixture", ("pretrain.curriculum=[]",)).reference.name == "mixture"


def test_runs_that_would_repeat_a_source_too_often_are_not_drawn_nor_proposed() -> None:
    ask = asked(max_epochs=2.0, runs=12)
    profile = ask.reference
    grounds = grounds_of(ask, profile, counted(speeches=150_000, encyclopedia_en=60_000, packages=9_000))
    assert grounds.names == ["speeches", "encyclopedia-en", "packages"], "the others have no tokens"
    assert reads(profile) == 4 * reads(ask.small()) == 204_800
    assert grounds.of_profile.tolist() == pytest.approx([1.0, 120_000 / 204_800, 18_000 / 204_800])
    matrix = swarm_matrix(ask, swarm_of(ask, grounds).trained)
    assert len(matrix.members) == 12
    for (member,) in matrix.members:
        config = member.profile.pretrain
        assert config is not None
        tokens = {"speeches": 150_000, "encyclopedia-en": 60_000, "packages": 9_000}
        assert max(one.epochs for one in planned(config, 100, 128, tokens)) < 2.1
    natural, even = (
        json.loads(arm.settings["pretrain.mixture"]) for arm in check_matrix(ask, grounds, {"speeches": 1.0}).arms[::2]
    )
    assert even["packages"] == pytest.approx(18_000 / 204_800, abs=1e-3)
    assert even["speeches"] == pytest.approx(even["encyclopedia-en"], abs=1e-3)
    assert natural["packages"] == pytest.approx(9 / 219)
    with pytest.raises(ConfigError, match=r"reads all 10,000 of its sources more than 2 times"):
        grounds_of(ask, profile, counted(speeches=5_000, packages=5_000))
    with pytest.raises(ConfigError, match="4 runs are too few for 3 sources"):
        swarm_of(asked(runs=4), grounds)
    with pytest.raises(ConfigError, match="packages has no tokens left"):
        grounds_of(
            asked(sources=("speeches", "packages", "encyclopedia-en")), profile, counted(speeches=9, encyclopedia_en=9)
        )


def test_a_target_needs_documents_that_are_held_out() -> None:
    held_out = {"speeches": 20, "packages": 2, "encyclopedia-en": 30}
    ask = asked()
    grounds = grounds_of(
        ask, ask.reference, counted(**dict.fromkeys(("speeches", "packages", "encyclopedia_en"), 90_000))
    )
    grounds = grounds._replace(held_out=held_out)
    assert target_on(ask, ask.reference, grounds) == ["speeches", "encyclopedia-en"]
    assert target_on(asked(target=("speeches=3",)), ask.reference, grounds) == {"speeches": 3.0}
    with pytest.raises(ConfigError, match="Fewer than 5 documents are held out of packages"):
        target_on(asked(target=("speeches", "packages")), ask.reference, grounds)
    for ask in (asked(), asked(target=("speeches=3",))):
        with pytest.raises(ConfigError, match="Only documents of speeches are held out"):
            target_on(ask, ask.reference, grounds._replace(held_out={"speeches": 20, "packages": 0}))
    with pytest.raises(ConfigError, match=r"gsm doesn't ask how likely.*that do: arc_easy"):
        check_target(ask.reference, {"gsm": 1.0, "speeches": 1.0}, ["arc_easy"])


def test_the_check_has_seeds_that_the_swarm_had_not_and_the_size_that_is_asked_for() -> None:
    ask, full = asked(runs=4), asked(full=True)
    grounds = grounds_of(ask, ask.reference, counted(speeches=90_000, packages=9_000))
    swarm = swarm_matrix(ask, swarm_of(ask, grounds).trained)
    check, whole = (check_matrix(one, grounds, {"speeches": 1.0}) for one in (ask, full))
    assert (swarm.seeds, check.seeds) == ([0], [1, 2, 3])
    steps = [one.reference.pretrain.steps for one in (swarm, check, whole) if one.reference.pretrain]
    assert steps == [100, 100, 400]
    names = [member.profile.name for one in (swarm, check) for arm in one.members for member in arm]
    assert len({*names}) == len(names), "each has refs of its own"


def test_runs_of_an_earlier_swarm_are_used_again() -> None:
    ask, tokens = asked(), {"speeches": 150_000, "encyclopedia_en": 60_000}
    profile = ask.reference
    two = swarm_of(ask, grounds_of(ask, profile, counted(**tokens))).trained
    assert len(two) == 16
    grounds = grounds_of(ask, profile, counted(**tokens, packages=90_000))
    same = swarm_of(ask, grounds, Earlier(two, []))
    assert same.trained[1:17] == two, "whose runs have the keys that they had"
    assert len(same.trained) - len(two) == 8
    assert all(one["packages"] > 0 for one in same.trained[17:])
    other = swarm_of(ask, grounds, Earlier(two, [None] * 16))  # type: ignore[list-item]
    assert other.earlier == two
    assert other.trained[1] == two[0], "which both kinds of tokens have a model of"
    assert len(other.trained) == 9
    assert np.allclose([sum(one.values()) for one in other.trained], 1)


def test_natural_proportions_of_a_source_smaller_than_a_slot_can_be_trained_on() -> None:
    ask = asked(runs=5)
    grounds = grounds_of(ask, ask.reference, counted(speeches=10_000_000, packages=500_000, encyclopedia_en=900))
    (member,) = swarm_matrix(ask, swarm_of(ask, grounds).trained).members[0]
    assert member.profile.pretrain is not None
    assert set(member.profile.pretrain.mixture or {}) == {"speeches", "packages"}
    assert load("smoke", member.sets) == member.profile
