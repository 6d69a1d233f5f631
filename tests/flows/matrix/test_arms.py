"""The arms of a matrix: which runs a command asks for, under which names, and what it can't ask for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flows.matrix.arms import levels_of, link_of, matrix_of, named
from flows.matrix.halving import announced, check_halving, shortened, steps_of
from flows.matrix.lanes import lanes_of
from flows.matrix.plan import plan_matrix
from profiles.load import load
from storage.errors import ConfigError

TWO = ("filter.fineweb=null", "pretrain.learning_rate=[3e-3, 6e-3]")


def test_all_combinations_are_run_with_every_seed_and_the_profile_as_it_is_comes_first() -> None:
    matrix = matrix_of("smoke", ["pretrain.seed=7"], TWO, 2)
    assert [arm.name for arm in matrix.arms] == [
        "smoke",
        "pretrain.learning_rate=0.003",
        "pretrain.learning_rate=0.006",
        "filter.fineweb=null",
        "filter.fineweb=null, pretrain.learning_rate=0.003",
        "filter.fineweb=null, pretrain.learning_rate=0.006",
    ]
    assert matrix.seeds == [7, 8]
    assert matrix.reference == load("smoke", ["pretrain.seed=7"])
    for number, arm in enumerate(matrix.members):
        for seed, member in enumerate(arm):
            assert (member.arm, member.seed) == (number, seed)
            assert member.profile.pretrain is not None
            assert member.profile.pretrain.seed == 7 + seed
    last = matrix.members[5][1].profile
    assert last.name == "smoke-filter-fineweb-null-pretrain-learning_rate-0-006-seed-1"
    assert last.filter is not None
    assert (last.filter.fineweb, last.pretrain and last.pretrain.learning_rate) == (None, 6e-3)
    assert len({member.profile.name for arm in matrix.members for member in arm}) == 12


def test_one_change_at_a_time() -> None:
    assert [arm.name for arm in matrix_of("smoke", [], TWO, 1, each=True).arms] == [
        "smoke",
        "filter.fineweb=null",
        "pretrain.learning_rate=0.003",
        "pretrain.learning_rate=0.006",
    ]


def test_a_value_that_the_profile_has_is_no_arm_of_its_own() -> None:
    assert len(matrix_of("smoke", [], ["pretrain.learning_rate=[1.5e-2, 6e-3]"], 1).arms) == 2
    with pytest.raises(ConfigError, match="every value is the profile's own"):
        matrix_of("smoke", [], ["dedup.threshold=0.8"], 1)


@pytest.mark.parametrize(
    ("given", "levels"),
    [
        ("a.b=null", ["null"]),
        ("a.b=[null, 3e-3, no, 'true', {x: [1]}]", ["null", "0.003", "no", '"true"', '{"x": [1]}']),
        ("a.b=[[en, de]]", ['["en", "de"]']),
        ("a.b={x: 1}", ["{x: 1}"]),
        ("a.b=[]", ["[]"]),
    ],
)
def test_values_are_those_of_set(given: str, levels: list[str]) -> None:
    assert levels_of([given]) == {"a.b": levels}


@pytest.mark.parametrize(
    ("profile", "keys", "asked", "link"),
    [
        ("smoke", [], None, "pretrain"),
        ("smoke", ["dedup"], None, "pretrain"),
        ("smoke", ["pretrain.steps", "sft.epochs"], None, "sft"),
        ("smoke", ["dpo.beta"], None, "dpo"),
        ("smoke", ["kto.epochs"], None, "dpo"),
        ("smoke", ["dedup"], "sft", "sft"),
        ("smoke", ["chain"], None, "dpo"),
        ("finetune", [], None, "sft"),
        ("finetune", ["base.revision"], None, "sft"),
        ("continue", ["tokenize.validation_share"], None, "pretrain"),
    ],
)
def test_the_first_model_that_all_settings_change_is_measured(
    profile: str, keys: list[str], asked: str | None, link: str
) -> None:
    assert link_of(load(profile), keys, asked) == link


@pytest.mark.parametrize(
    ("vary", "asked", "problem"),
    [
        ("runtime.compute.threads=1", None, "no model depends on it"),
        ("export.formats=[gguf-f16]", None, "no model depends on it"),
        ("evaluate=null", None, "no model depends on it"),
        ("name=x", None, "no model depends on it"),
        ("dedup", None, "lacks a value"),
        ("dedup=", None, "lacks a value"),
        ("=3", None, "lacks a key"),
        ("dedup.threshold=[0.7", None, "not YAML"),
        ("dedup.treshold=0.7", None, "unknown key"),
        ("dedup.threshold=[0.7, 2]", None, "at most 1"),
        ("dpo.beta=0.2", "sft", "comes before what is varied"),
        ("dedup=null", "export", "makes no model of smoke"),
        ("pretrain.seed=[1, 2]", None, "all arms have the same seeds"),
        ("sft={epochs: 2, seed: 5}", None, "sft.seed can't be varied: all arms have"),
    ],
)
def test_what_cannot_be_varied_is_refused(vary: str, asked: str | None, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        matrix_of("smoke", [], [vary], 2, link=asked)


def test_settings_that_belong_together_are_one_arm() -> None:
    arm = ["{pretrain.global_batch: 4, pretrain.learning_rate: 2e-2}", "{sft: null, dedup.threshold: 0.5}"]
    matrix = matrix_of("smoke", [], ["dedup=null"], 2, arm=[*arm, arm[0], "{dedup: null}"])
    assert [one.settings for one in matrix.arms] == [
        {},
        {"dedup": "null"},
        {"pretrain.global_batch": "4", "pretrain.learning_rate": "0.02"},
        {"sft": "null", "dedup.threshold": "0.5"},
    ]
    for problem, wrong in (
        ("has no settings", "dedup=null"),
        ("has no settings", "{}"),
        ("has no settings", "{dedup.threshold: [0.5}"),
        ("no model depends on it", "{dedup: null, evaluate: null}"),
        ("unknown key", "{dedup.treshold: 0.5}"),
        ("all arms have the same seeds", "{dedup: null, pretrain.seed: 3}"),
        ("every value is the profile's own", "{dedup.threshold: 0.8}"),
    ):
        with pytest.raises(ConfigError, match=problem):
            matrix_of("smoke", [], [], 2, arm=[wrong])


def test_trainings_on_gpus_have_a_price(tmp_path: Path) -> None:
    sets = [f"runtime.store={tmp_path}", "runtime.training.processes=4"]
    prices = [plan_matrix(matrix_of(name, sets, [], 1)).price for name in ("gpu", "tiny")]
    assert prices == [4 * 3.0, None]


def test_too_many_runs_are_refused() -> None:
    many = [f"pretrain.{key}=[1, 2, 3, 4, 5, 6]" for key in ("weight_decay", "gradient_clip", "learning_rate")]
    with pytest.raises(ConfigError, match="343 arms"):
        matrix_of("smoke", [], many, 1)
    with pytest.raises(ConfigError, match="0 seeds"):
        matrix_of("smoke", [], [], 0)
    with pytest.raises(ConfigError, match="given twice"):
        matrix_of("smoke", [], ["dedup=null", "dedup=null"], 1)


def test_a_key_inside_another_is_varied_on_its_own() -> None:
    both = ["dedup.threshold=0.5", "dedup=null"]
    with pytest.raises(ConfigError, match=r"--vary dedup replaces dedup\.threshold"):
        matrix_of("smoke", [], both, 1)
    assert len(matrix_of("smoke", [], both, 1, each=True).arms) == 3


def test_a_setting_of_a_stage_that_the_profile_lacks_is_refused() -> None:
    for vary in ("dedup=null", "tokenize.validation_share=0.1"):
        with pytest.raises(ConfigError, match="finetune has no stage"):
            matrix_of("finetune", [], [vary], 1)
    assert len(matrix_of("finetune", [], ["filter.pii=null"], 1).arms) == 2, "pairs are filtered too"


def test_runs_of_several_seeds_share_no_training() -> None:
    (seeds,) = matrix_of("smoke", ["pretrain.seed=1"], [], 3, link="sft").members
    assert [(one.profile.pretrain and one.profile.pretrain.seed) for one in seeds] == [1, 2, 3]
    assert [(one.profile.sft and one.profile.sft.seed) for one in seeds] == [0, 1, 2]


def test_runs_whose_values_differ_in_signs_only_have_names_of_their_own() -> None:
    matrix = matrix_of("smoke", [], ['pretrain.sample_prompts=[["A"], ["a"], ["é"], ["ü"]]'], 2)
    names = {member.profile.name for arm in matrix.members for member in arm}
    assert len(names) == 10
    assert {"smoke-pretrain-sample_prompts-a", "smoke-seed-1"} <= names


def test_a_plan_says_how_many_runs_halving_makes() -> None:
    rates = ["pretrain.learning_rate=[1e-4, 5e-3, 3e-2, 1e-1]"]
    said = announced(matrix_of("smoke", [], rates, 2))
    assert said == "--halve makes 10 runs of 8 steps and 6 runs of 15 steps, then only 4 of the runs above to the end."
    assert "none of fewer than three arms" in announced(matrix_of("smoke", [], ["dedup=null"], 2))
    with pytest.raises(ConfigError, match="steps varies"):
        announced(matrix_of("smoke", [], ["pretrain.steps=20"], 1))


def test_names_are_valid_and_differ_however_long_they_are() -> None:
    long = [named("smoke", "x" * 200, str(number)) for number in range(3)]
    assert len(set(long)) == 3
    assert max(map(len, long)) < 100


def test_a_shortened_run_has_a_share_of_the_steps_and_of_what_is_counted_in_them() -> None:
    change = "pretrain.curriculum=[{from_step: 20, mixture: {speeches: 1}}]"
    sets = ["pretrain.steps=40", "pretrain.warmup_steps=8", "pretrain.mixture={speeches: 1, packages: 1}", change]
    matrix = matrix_of("smoke", sets, ["dedup=null"], 2)
    short = shortened(matrix, 0.25)
    assert steps_of(short.reference) == 10
    profile = short.members[1][1].profile
    assert (profile.dedup, profile.name) == (None, "smoke-dedup-null-seed-1-of-10-steps")
    assert profile.pretrain is not None
    assert (profile.pretrain.warmup_steps, profile.pretrain.curriculum[0].from_step) == (2, 5)
    stable = shortened(matrix_of("smoke", [*sets, "pretrain.schedule=wsd"], [], 1), 0.5).reference.pretrain
    assert stable is not None
    assert stable.warmup_steps == 8, "the stable phase is the same"
    tokens = ["pretrain.steps=null", "pretrain.tokens=20480"]
    assert steps_of(shortened(matrix_of("smoke", tokens, [], 1), 0.5).reference) == 20
    for vary, problem in (("pretrain.steps=20", "pretrain.steps varies"), ("dpo.beta=1", "dpo is measured")):
        with pytest.raises(ConfigError, match=problem):
            check_halving(matrix_of("smoke", [], [vary], 1))


def test_some_arms_of_a_matrix_are_a_matrix() -> None:
    matrix = matrix_of("smoke", [], ["pretrain.weight_decay=[0, 0.2, 0.3]"], 2).only([0, 3])
    assert [arm.name for arm in matrix.arms] == ["smoke", "pretrain.weight_decay=0.3"]
    assert [[(one.arm, one.seed) for one in arm] for arm in matrix.members] == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]


def test_lanes_that_end_before_they_have_begun_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for seconds in (0.2, 0.8):  # while they import
        with lanes_of(load("smoke"), 2):
            time.sleep(seconds)
    assert capfd.readouterr() == ("", "")
