"""Rewards of answers, the end of a run that games them, and the settings that a profile may have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.runtimes.greedy import cut, pad_left
from profiles.load import load
from storage.errors import ConfigError, RewardHacking
from tasks.posttrain.methods.grpo import GrpoConfig, grpo
from tasks.posttrain.rewards.config import ExactReward, FormatReward, LengthReward, RegexReward
from tasks.posttrain.rewards.held_out import seeded
from tasks.posttrain.rewards.score import Answer, Scorer
from tasks.posttrain.rewards.verify import exact, format_, length, regex
from tasks.posttrain.rewards.watch import check_held_out, check_kl
from tests.runtimes import runtime_of


@pytest.mark.parametrize(
    ("answer", "reference", "equal", "contains"),
    [
        ("7", "7", 1, 1),
        (" Seven.\n", "seven", 1, 1),
        ("(7)", "7", 1, 1),
        ("It is 7.", "7", 0, 1),
        ("17", "7", 0, 0),
        ("-7", "7", 0, 0),
        ("\N{MINUS SIGN}7", "-7", 1, 1),
        ("3-7", "7", 0, 1),
        ("2.5", "5", 0, 0),
        (".5", "5", 0, 0),
        ("5,000", "5", 0, 0),
        ("3, 5, 7", "5", 0, 1),
        ("So 5.", "5", 0, 1),
        ("10²", "102", 0, 0),
        ("10²", "10^2", 1, 1),
        ("2½", "21/2", 0, 0),
        ("C", "C++", 0, 0),
        ("", "...", 0, 0),
        ("ﬁve", "five", 1, 1),
        ("new  york", "New York!", 1, 1),
        ("", "7", 0, 0),
        ("anything", "?", 0, 0),
    ],
)
def test_an_exact_answer_is_its_reference_after_normalisation(
    answer: str, reference: str, equal: float, contains: float
) -> None:
    assert exact(ExactReward(), answer, reference) == equal
    assert exact(ExactReward(match="contains"), answer, reference) == contains


def test_a_pattern_compares_what_it_finds_last() -> None:
    last_number = RegexReward(pattern=r"(-?\d+)")
    assert regex(last_number, "3 and 4 make 7", "#### 7") == 1
    assert regex(last_number, "7 is not 3", "7") == 0
    assert regex(last_number, "no number", "7") == 0
    assert regex(last_number, "no number", "none") == 0, "two answers without a match are not equal"


def test_form_and_length_do_not_ask_what_is_right() -> None:
    tagged = FormatReward(pattern=r"<think>.*</think>\s*<answer>.+</answer>")
    assert format_(tagged, "<think>a\nb</think>\n<answer>1</answer>\n") == 1
    assert format_(tagged, "so: <think></think><answer>1</answer>") == 0
    assert [length(LengthReward(target=10), tokens) for tokens in (10, 5, 0, 20, 40)] == [1, 0.5, 0, 0, 0]


def test_rewards_are_summed_by_weight() -> None:
    scorer = Scorer([ExactReward(weight=2), LengthReward(target=4, weight=-0.5)])
    answers = [Answer([], "7", 4, "7"), Answer([], "8", 2, "7")]
    scores = scorer.score(answers)
    assert scores.means() == {"reward": 2 * 0.5 - 0.5 * 0.75, "exact": 0.5, "length": 0.75}
    assert scores.sums == [2 * 1 - 0.5 * 1, 2 * 0 - 0.5 * 0.5]
    assert scores.counts() == {}, "nothing to count: each answer has these"
    blind = Scorer([RegexReward(pattern=r"#### (\d+)")])
    blind.check_references(["none", "#### 7"], "grpo")
    with pytest.raises(ConfigError, match="matches none of 2 references"):
        blind.check_references(["none", "7"], "grpo")


def test_a_pattern_that_finds_nothing_but_emptiness_finds_nothing() -> None:
    with pytest.raises(ConfigError, match="matches none of 1 references"):
        Scorer([RegexReward(pattern=r"(\d*)")]).check_references(["none"], "grpo")
    assert regex(RegexReward(pattern=r"(\d*)"), "7 it is", "so 7") == 1


def test_a_pattern_that_never_ends_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.posttrain.rewards.verify.MATCH_SECONDS", 0.1)
    with pytest.raises(ConfigError, match=r"takes more than 0\.1 s to match one answer"):
        format_(FormatReward(pattern=r"(a|aa)+"), "a" * 80 + "b")
    with pytest.raises(ConfigError, match=r"takes more than 0\.1 s"):
        regex(RegexReward(pattern=r"(a|aa)+\Z"), "a" * 80 + "b", "a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rewards": []}, "at least 1 item"),
        ({"rewards": [{"kind": "exact", "weight": 0}]}, "a reward of weight 0 changes nothing"),
        ({"validation_share": 0}, "max_drop needs held-out prompts"),
        ({"rewards": [{"kind": "regex", "pattern": "("}]}, "is not a regular expression"),
        ({"rewards": [{"kind": "regex", "pattern": "a"}]}, "needs a group"),
        ({"rewards": [{"kind": "exact"}, {"kind": "exact"}]}, "rewards has exact twice"),
        ({"rewards": [{"kind": "exact"}, {"kind": "length", "target": 3, "name": "exact"}]}, "rewards has exact twice"),
        ({"rewards": [{"kind": "exact", "name": "validation"}]}, "would be that of a validation's measure"),
        ({"rewards": [{"kind": "python"}]}, "set one of them: a file, or an entry_point"),
        ({"beta": 0}, "max_kl needs a reference"),
        ({"adapter": {"rank": 4, "dropout": 0.1}}, r"adapter\.dropout would differ"),
        ({"clip_high": 0.3}, "need several updates"),
        ({"loss": "cispo", "updates": 2, "clip_low": 0.1}, "clip_low doesn't apply to cispo"),
        ({"loss": "rloo", "scale": "group"}, "scale group doesn't apply to rloo"),
        (
            {"overlong": {"start": 2}, "rewards": [{"kind": "length", "target": 3, "name": "overlong"}]},
            "a reward is called overlong",
        ),
        ({"overlong": {"start": 64}}, r"overlong\.start must be below max_new_tokens"),
        ({"group": 1}, "greater than or equal to 2"),
    ],
    ids=str,
)
def test_what_can_not_be_done_is_refused_with_the_profile(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GrpoConfig.model_validate(settings)


def test_rewards_of_a_judge_need_one_before_them() -> None:
    asked = ["grpo.rewards=[{kind: model}]"]
    for settings in (asked, [*asked, "reward={}", "chain=[sft, dpo, grpo, reward]"]):
        with pytest.raises(ConfigError, match="grpo learns from a reward model, but no reward comes before it"):
            load("tiny", settings)
    assert load("tiny", [*asked, "reward={}"]).links == ("sft", "dpo", "reward", "grpo")


def test_fields_that_rewards_need_are_kept_by_a_source() -> None:
    tests = "grpo.rewards=[{kind: tests}]"
    source = "{kind: files, name: mine, paths: [a.jsonl], role: instructions, fields: [tests]}"
    for settings in ([tests], ["grpo.rewards=[{kind: python, file: rewards.py, fields: [tests]}]"]):
        with pytest.raises(ConfigError, match="needs the field tests of rows, which no source keeps"):
            load("tiny", settings)
    assert load("tiny", [tests, f"download.sources=[{{kind: embedded}}, {source}]"]).grpo is not None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"compile": "default"}, "compile is default, under which grpo can't sample answers"),
        (
            {"engine": "deepspeed", "zero_stage": 3, "processes": 2},
            "engine is deepspeed, under which grpo can't sample",
        ),
    ],
    ids=str,
)
def test_engines_that_cant_sample_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        grpo.check_runtime(GrpoConfig(), runtime_of(group="posttrain", **settings))


def history(held_out: list[float], training: list[float], kl: float) -> list[dict[str, float]]:
    """A history as the trainer keeps it: a validation before the first step, and one after every ten."""
    rows: list[dict[str, float]] = [{"step": 0, "eval_reward": held_out[0]}]
    for number, (measured, trained) in enumerate(zip(held_out[1:], training, strict=True), 1):
        rows += [{"step": 10 * number - 9 + step, "reward": trained, "kl": kl} for step in range(10)]
        rows.append({"step": 10 * number, "eval_reward": measured})
    return rows


def test_a_policy_far_from_its_reference_ends_the_run() -> None:
    rows = history([0.2, 0.5], [0.4], kl=0.3)
    check_kl(rows, 0.3, "grpo")
    check_kl(rows, None, "grpo")
    check_kl([], 0.1, "grpo")
    with pytest.raises(
        RewardHacking, match=r"Step 10: .* is 0\.300 nats a token, more than grpo\.max_kl, 0\.1"
    ) as told:
        check_kl(rows, 0.1, "grpo")
    assert "held-out reward from 0.200 to 0.500" in str(told.value)
    far, near = ({"step": 1, "reward": 0.5, "kl": kl} for kl in (0.3, 0.0))
    check_kl([*rows[:1], far, near], 0.1, "grpo")
    with pytest.raises(RewardHacking):
        check_kl([*rows[:1], near, far], 0.1, "grpo")


def test_a_fall_of_the_held_out_reward_ends_the_run_and_says_whether_training_rose() -> None:
    gamed = history([0.2, 0.6, 0.5, 0.2], [0.4, 0.7, 0.9], kl=0.1)
    check_held_out(gamed, 0.5, "grpo")
    check_held_out(gamed, None, "grpo")
    check_held_out(gamed[:22], 0.3, "grpo")
    with pytest.raises(RewardHacking, match=r"Step 30: .* below the 0\.600 of step 10, while that of training rose"):
        check_held_out(gamed, 0.3, "grpo")
    with pytest.raises(RewardHacking, match="and that of training fell with it"):
        check_held_out(history([0.2, 0.6, 0.1], [0.6, 0.1], kl=0.1), 0.3, "grpo")


def test_samples_depend_on_seed_and_step_and_disturb_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    drawn = []
    for seed, step in ((0, 1), (0, 1), (0, 2), (1, 1)):
        with seeded(seed, step):
            drawn.append(torch.rand(4).tolist())
    assert drawn[0] == drawn[1]
    assert len({tuple(row) for row in drawn}) == 3
    assert torch.rand(2).tolist() == expected


def test_answers_end_where_they_end_and_prompts_are_padded_before() -> None:
    assert cut([5, 6, 2, 7], [2, 3]) == [5, 6, 2]
    assert cut([5, 6], [2]) == [5, 6]
    ids, mask = pad_left([[5], [6, 7]], 0)
    assert ids.tolist() == [[0, 5], [6, 7]]
    assert mask.tolist() == [[0, 1], [1, 1]]
