"""Ladders: which trainings a budget gets, that they can branch, and what is refused before any is made."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from flows.matrix.ladder import AskedLadder, Ladder, ladder_of
from flows.matrix.sizes import settings_of, size_of, sizes_up_to
from models.presets import derive, flops_per_token
from profiles.load import load
from storage.errors import ConfigError

SMALL = ["pretrain.model.heads=4", "pretrain.model.kv_heads=2", "pretrain.decay_share=0.25"]
BUDGETS = [1e11, 2e11, 4e11]


def ladder(profile: str = "smoke", overrides: list[str] | None = None, **asked: Any) -> Ladder:
    budgets, sizes = asked.pop("budgets", BUDGETS), asked.pop("sizes", [])
    return ladder_of(AskedLadder(profile, SMALL if overrides is None else overrides, budgets, sizes, **asked))


def test_each_budget_gets_several_sizes_of_its_compute_that_differ_in_shape_only() -> None:
    made = ladder()
    for budget in BUDGETS:
        at = [rung for rung in made.rungs if rung.flops == pytest.approx(budget, rel=0.02)]
        assert len({rung.of.width for rung in at}) >= 2
    for (member,), rung in zip(made.matrix.members, made.rungs, strict=True):
        config = member.profile.pretrain
        assert config is not None
        shape = derive(config.new_model, 1024)
        assert (shape.width, shape.head_dim, shape.width // shape.heads) == (rung.of.width, 16, 16)
        assert flops_per_token(shape) / 6 == rung.of.size
        assert config.samples(rung.steps) * shape.context == rung.tokens
        assert config.steps == rung.steps
        assert (config.schedule, config.mup_base_width, config.global_batch) == ("wsd", 64, 4)
        assert member.profile.runtime.pretrain.branches
        assert made.config.rungs[f"{member.arm}.0"].of == rung.of
    # At a size all lengths have one warmup, and come in order, so that they branch
    for width in {rung.of.width for rung in made.rungs}:
        mine = [rung for rung in made.rungs if rung.of.width == width]
        assert len({rung.warmup for rung in mine}) == 1
        assert [rung.steps for rung in mine] == sorted(rung.steps for rung in mine)


def test_branches_leave_one_stable_part_for_a_size() -> None:
    made = ladder(sizes=[32], budgets=[1e11, 2e11, 4e11, 8e11])
    steps = [rung.steps for rung in made.rungs]
    stable = steps[-1] - round(0.25 * steps[-1])
    assert made.steps == (sum(steps), stable + sum(round(0.25 * one) for one in steps))


def test_the_profiles_own_size_and_length_are_a_target() -> None:
    made = ladder()
    own = made.config.targets["smoke"]
    assert (own.of, own.tokens) == (size_of(load("smoke", SMALL), 64), 30 * 4 * 128)
    assert own.of in made.config.sizes


def test_rates_are_tried_at_the_smallest_and_the_largest_size() -> None:
    made = ladder(check_rate=True)
    widths = {rung.of.width for rung in made.rungs}
    tried = [(rung.of.width, rung.rate) for rung in made.rungs if rung.rate != 1]
    assert sorted(tried) == [(width, rate) for width in (min(widths), max(widths)) for rate in (0.5, 2.0)]
    base = load("smoke", SMALL).pretrain
    for (member,), rung in zip(made.matrix.members, made.rungs, strict=True):
        config = member.profile.pretrain
        assert config is not None
        assert base is not None
        assert config.learning_rate == pytest.approx(base.learning_rate * rung.rate)
        assert config.muon_learning_rate == pytest.approx((base.muon_learning_rate or 0) * rung.rate)
        # With each other rate there is one of the ladder's own to compare with
        assert any(one.of == rung.of and one.steps == rung.steps and one.rate == 1 for one in made.rungs)


def test_sizes_of_other_families_keep_their_proportions() -> None:
    model = ["family=qwen3_moe", "feed_forward=null", "experts=4", "expert_feed_forward=96"]
    of_experts = load("smoke", [*(f"pretrain.model.{one}" for one in model), "export.formats=[safetensors]"])
    widths = [one.width for one in sizes_up_to(of_experts, 1e6)]
    assert widths[:3] == [32, 64, 96]
    assert settings_of(of_experts, 96)["expert_feed_forward"] == 144
    large = sizes_up_to(load("gpu"), 1e9)
    assert all(after.size < 1.35 * before.size for before, after in pairwise(large[10:]))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"budgets": []}, "no budget"),
        *(({"budgets": [1e11, number]}, "--budgets: .* not between 0 and") for number in (0, -1, math.nan, math.inf)),
        *(({"target": number}, "--target: .* not between 0 and") for number in (0.0, -1.0, math.nan, math.inf)),
        ({"budgets": [4e11, 4.01e11, 4.02e11, 4.03e11], "sizes": [32]}, "the same size and tokens"),
        ({"budgets": [*BUDGETS, 8e11], "sizes": [32], "target": 1e12}, "of tokens only"),
        ({"budgets": [1e6, 2e6]}, "shorter than 20 steps"),
        ({"budgets": [1e11]}, "needs"),
        ({"sizes": [40]}, "no multiple of 16"),
        *(({"sizes": [width]}, "not between 16 and") for width in (0, -16, 1 << 40)),
        ({"sizes": [32, 64]}, "2 values of size"),
        ({"seeds": 0}, "0 seeds"),
        ({"target": 1e14}, "more than 10 × the largest training"),
        ({"profile": "finetune", "overrides": []}, "trains no new model"),
    ],
)
def test_what_tells_no_law_is_refused_before_any_training(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ladder(**asked)


def test_a_far_target_is_allowed_with_beyond_and_a_bucket_has_no_branches() -> None:
    assert ladder(target=1e14, beyond=True).config.computes == [1e14]
    (first,), *_ = ladder(overrides=[*SMALL, "runtime.store=s3://bucket"]).matrix.members
    assert not first.profile.runtime.pretrain.branches
