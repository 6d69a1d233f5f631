"""The learning rate and the batch size of a step, and the length of the run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from models.presets import chinchilla_tokens, derive
from storage.errors import ConfigError
from tasks.pretrain import PretrainConfig
from tasks.pretrain.recipe.schedule import learning_rate

MODEL = {"depth": 1, "width": 32, "heads": 2, "context": 16}
SHAPE = derive(PretrainConfig.model_validate({"model": MODEL}).new_model, 100)


def config_of(**choices: Any) -> PretrainConfig:
    return PretrainConfig.model_validate({"model": MODEL, **choices})


# Of a peak of 2, ten steps of warmup and a floor of a tenth, at steps 1, 5, 10, 60, 100, 105, 110
GOLDEN: dict[str, tuple[dict[str, Any], list[float]]] = {
    "cosine": ({}, [0.2, 1.0, 2.0, 1.1, 0.24404914, 0.21108049, 0.2]),
    "linear": ({}, [0.2, 1.0, 2.0, 1.1, 0.38, 0.29, 0.2]),
    "constant": ({}, [0.2, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]),
    "wsd": ({"decay_share": 0.2}, [0.2, 1.0, 2.0, 2.0, 0.67061190, 0.41771167, 0.2]),
    "wsd-linear": ({"decay_share": 0.2, "decay_shape": "linear"}, [0.2, 1.0, 2.0, 2.0, 1.01818182, 0.60909091, 0.2]),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_each_schedule_has_the_rates_that_it_had(name: str) -> None:
    choices, expected = GOLDEN[name]
    config = config_of(schedule=name.partition("-")[0], learning_rate=2.0, warmup_steps=10, final_share=0.1, **choices)
    found = [learning_rate(config, step, 110) for step in (1, 5, 10, 60, 100, 105, 110)]
    assert found == pytest.approx(expected, abs=1e-8)


schedules = st.sampled_from(["cosine", "wsd", "linear", "constant"])


@settings(max_examples=50)
@given(
    schedules,
    st.sampled_from(["linear", "1-sqrt"]),
    st.floats(0, 1),
    st.floats(0.05, 0.9),
    st.integers(0, 40),
    st.integers(60, 400),
)
def test_a_rate_rises_to_the_peak_and_falls_to_its_floor_without_a_jump(
    schedule: Any, shape: Any, floor: float, share: float, warmup: int, after: int
) -> None:
    config = config_of(
        schedule=schedule,
        decay_shape=shape,
        final_share=floor,
        decay_share=share,
        warmup_steps=warmup,
        learning_rate=1.0,
    )
    steps = warmup + 10 * after
    rates = [learning_rate(config, step, steps) for step in range(1, steps + 1)]
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else floor, abs=1e-9)
    assert min(rates[warmup:]) >= min(floor, 1) - 1e-9
    assert min(rates) > 0 or floor == 0
    assert min(rates) >= 0
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    # The root is steep where it begins: there a step of a decay of n falls by 1/√n
    steepest = max((share * steps - 1) ** -0.5, 2 / after)
    assert max((a - b for a, b in itertools.pairwise(falling)), default=0) <= steepest


def test_wsd_stays_at_the_peak_until_the_share_begins() -> None:
    config = config_of(schedule="wsd", decay_share=0.25, learning_rate=1.0, warmup_steps=4, final_share=0.0)
    rates = [learning_rate(config, step, 40) for step in range(1, 41)]
    assert rates.count(1.0) == 27  # steps 4 to 30
    assert rates[30:] == pytest.approx([1 - (n / 10) ** 0.5 for n in range(1, 11)])


@given(st.integers(0, 5), st.integers(0, 90), st.integers(1, 5), st.integers(1, 200))
def test_the_batch_doubles_in_equal_intervals_and_samples_are_its_sum(
    doublings: int, warm: int, more: int, steps: int
) -> None:
    parts, whole = 2 ** (doublings + 1), 2 ** (doublings + 1) * more
    config = config_of(global_batch=whole, batch_warmup_steps=warm, batch_warmup_parts=parts)
    sizes = [config.batch(step) for step in range(1, steps + 1)]
    assert [config.samples(step) for step in range(steps + 1)] == [0, *itertools.accumulate(sizes)]
    assert sizes == sorted(sizes)
    assert sizes[0] == (more if warm else whole)
    assert set(sizes[warm:]) <= {whole}
    if warm >= steps == 3 * (doublings + 1):
        assert set(sizes) <= {more * 2**power for power in range(doublings + 1)}


def test_without_a_warmup_every_batch_is_whole() -> None:
    config = config_of(global_batch=24)
    assert {config.batch(step) for step in range(1, 50)} == {24}
    assert config.samples(49) == 49 * 24
    grown = config_of(global_batch=32, batch_warmup_steps=6, batch_warmup_parts=8)
    assert [grown.batch(step) for step in range(1, 9)] == [4, 4, 8, 8, 16, 16, 32, 32]


@given(st.integers(1, 40_000), st.integers(0, 50), st.sampled_from([2, 8, 16]))
def test_the_run_is_as_long_as_its_tokens_need(tokens: int, warm: int, parts: int) -> None:
    config = config_of(
        tokens=tokens, global_batch=16, batch_warmup_steps=warm, batch_warmup_parts=parts, warmup_steps=0
    )
    needed = -(-tokens // 16)
    if warm and needed <= config.samples(warm):
        with pytest.raises(ConfigError, match="batch_warmup_steps"):
            config.total_steps(SHAPE)
        return
    steps = config.total_steps(SHAPE)
    assert config.samples(steps - 1) < needed <= config.samples(steps)


def test_without_a_length_it_is_the_compute_optimal_one() -> None:
    steps = config_of(global_batch=4).total_steps(SHAPE)
    assert (steps - 1) * 4 * 16 < chinchilla_tokens(SHAPE) <= steps * 4 * 16


def test_a_batch_may_be_given_in_tokens() -> None:
    config = config_of(global_batch_tokens=512)
    assert (config.global_batch, config_of().global_batch) == (32, 8)
    assert PretrainConfig.model_validate_json(config.model_dump_json()) == config
    assert config_of(global_batch_tokens=512, global_batch=32) == config


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"global_batch_tokens": 500}, "31 sequences of 16 tokens are 496"),
        ({"global_batch_tokens": 5}, "0 sequences of 16"),
        ({"global_batch_tokens": 512, "global_batch": 8}, "8 sequences of 16 tokens are 128"),
        ({"batch_warmup_parts": 6}, "batch_warmup_parts is 6, which is not a power of 2"),
        ({"batch_warmup_steps": 5, "global_batch": 12}, r"a batch of 12 can't be cut into 8"),
        ({"muon_learning_rate": 0.1}, "does not apply to adamw"),
    ],
)
def test_what_contradicts_itself_is_refused(choices: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        config_of(**choices)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"batch_warmup_steps": 50}, "batch_warmup_steps is 50"),
        ({"schedule": "wsd", "decay_share": 0.9, "warmup_steps": 6}, r"decay_share is 0\.9"),
    ],
)
def test_a_warmup_that_the_run_is_too_short_for_is_refused(choices: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_of(steps=50, **choices).total_steps(SHAPE)
