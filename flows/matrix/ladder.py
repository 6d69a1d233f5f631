"""The trainings of a ladder: a profile's pretraining at several sizes and lengths, for each budget of compute.

Each budget gets sizes around that of 20 tokens a parameter, where the best one is to be expected (Hoffmann et al.
2022). All trainings have the profile's batch and go by wsd. muP transfers the learning rate from the profile's own
width. The warmup is the profile's share of the shortest training of a size, and the same for all lengths of that size:
otherwise they couldn't branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from flows.deployed.parameters import MOST_SEEDS
from flows.matrix.arms import Arm, Matrix, Member, named, seeds_of
from flows.matrix.sizes import model_of, settings_of, size_of, sizes_up_to
from models.presets import flops_per_token
from profiles.load import load
from profiles.schema import Profile
from storage.errors import ConfigError
from tasks.ablate.laws.law import FARTHEST, Point, axes_of
from tasks.ablate.scaling.config import RungConfig, ScalingConfig, SizeConfig, TargetConfig
from tasks.ablate.stage import place
from tasks.pretrain import PretrainConfig
from tasks.pretrain.check import is_folder
from tasks.pretrain.recipe.steps import decay_steps

TOKENS_PER_PARAMETER = 20
AROUND = (0.35, 0.6, 1.0, 1.7, 2.8)  # times the expected size
LEAST_STEPS = 20
MOST_TRAININGS = 200
MOST_FLOPS = 1e30  # far more than was ever spent on a training
GIVE = "Give computes in FLOPs, such as --budgets 1e12,3e12,1e13."
RATES = (0.5, 2.0)  # times the profile's own, which is tried beside them
NEVER = 10**9  # steps between validations
FAMILY_WITHOUT_MUP = "gemma3"
RECIPE = ("optimizer", "global_batch", "learning_rate", "muon_learning_rate", "weight_decay", "packing", "mixture")


@dataclass(frozen=True)
class AskedLadder:
    """A ladder, as in its command. `sizes` are widths, `target` is a compute in FLOPs."""

    profile: str
    overrides: list[str]
    budgets: list[float]
    sizes: list[int]
    seeds: int = 1
    target: float | None = None
    check_rate: bool = False
    beyond: bool = False
    jobs: int | None = None


class Rung(NamedTuple):
    """A training of the ladder, without its seed. Tokens are those of whole steps."""

    of: SizeConfig
    steps: int
    tokens: int
    rate: float = 1.0
    warmup: int = 0

    @property
    def flops(self) -> float:
        """Its compute."""
        return 6 * self.of.size * self.tokens


class Ladder(NamedTuple):
    """The runs as a matrix, an arm for each rung, and the config of their law."""

    profile: Profile
    matrix: Matrix
    rungs: list[Rung]
    config: ScalingConfig

    @property
    def steps(self) -> tuple[int, int]:
        """The training steps of all runs, and those that are left where longer runs begin from branches of shorter
        ones."""
        each, left = len(self.matrix.seeds), 0
        share = model_of(self.profile)[0].decay_share
        for _, same in groupby(sorted(self.rungs, key=_by_length), key=lambda rung: _by_length(rung)[:2]):
            begun = 0
            for rung in same:
                left += rung.steps - begun
                begun = rung.steps - decay_steps(share, rung.steps)
        return each * sum(rung.steps for rung in self.rungs), each * left


def ladder_of(asked: AskedLadder) -> Ladder:
    """The ladder of a profile. Raises ConfigError for a profile that trains no new model, for budgets and sizes that
    tell no law, and for a target too far away."""
    profile = load(asked.profile, asked.overrides)
    if not asked.budgets:
        raise ConfigError("The ladder has no budget.", GIVE)
    targets = [] if asked.target is None else [asked.target]
    for option, computes in (("--budgets", asked.budgets), ("--target", targets)):
        for compute in computes:
            if not 0 < compute <= MOST_FLOPS:
                raise ConfigError(f"{option}: {compute:g} FLOPs are not between 0 and {MOST_FLOPS:g}.", GIVE)
    if not 1 <= asked.seeds <= MOST_SEEDS:
        raise ConfigError(f"{asked.seeds} seeds are not between 1 and {MOST_SEEDS}.", "One is usual for a ladder.")
    own = _target(profile)
    farthest = max(asked.target or 0, 6 * own.of.size * own.tokens, *asked.budgets)
    possible = sizes_up_to(profile, 4 * max(AROUND) * expected_size(farthest))
    rungs = _warmed(_points(asked, profile, possible), profile)
    axes = axes_of([Point(rung.of.size, rung.tokens, 1.0) for rung in rungs])
    if asked.target is not None and len(axes) == 1:
        raise ConfigError(
            f"--target seeks the best size, but the law of this ladder is of {axes[0]} only.",
            "Name three widths or more by --sizes, give budgets further apart, or leave --target out.",
        )
    _check_target(asked, max(rung.flops for rung in rungs))
    if asked.check_rate:
        shortest = {rung.of.width: rung for rung in sorted(rungs, key=_by_length, reverse=True)}
        for width in (min(shortest), max(shortest)):
            rungs += [shortest[width]._replace(rate=rate) for rate in RATES]
    if len(rungs) * asked.seeds > MOST_TRAININGS:
        raise ConfigError(
            f"{len(rungs) * asked.seeds} trainings are more than {MOST_TRAININGS}.", "Give fewer budgets or sizes."
        )
    rungs = _in_turn(rungs)
    matrix = _matrix(asked, profile, rungs)
    trained = {
        place(arm, seed): RungConfig(of=rung.of, tokens=rung.tokens, seed=matrix.seeds[seed], rate=rung.rate)
        for arm, rung in enumerate(rungs)
        for seed in range(asked.seeds)
    }
    config = ScalingConfig(
        rungs=trained,
        sizes=possible,
        targets={profile.name: own},
        computes=targets,
        beyond=asked.beyond,
        recipe=recipe_of(model_of(profile)[0]),
    )
    return Ladder(profile, matrix, rungs, config)


def expected_size(flops: float) -> float:
    """N for a budget, with 20 tokens for each."""
    return math.sqrt(flops / 6 / TOKENS_PER_PARAMETER)


def flops_of(profile: Profile) -> float:
    """The compute of a profile's pretraining, in FLOPs, as the law counts it."""
    config, shape = model_of(profile)
    return flops_per_token(shape) * config.samples(config.total_steps(shape)) * shape.context


def recipe_of(config: PretrainConfig) -> dict[str, Any]:
    """The settings of a pretraining that all trainings of its ladder share. With others the law would be another."""
    chosen = config.model_dump(mode="json")
    model = config.new_model
    return {"family": model.family, "context": model.context, **{name: chosen[name] for name in RECIPE}}


def _points(asked: AskedLadder, profile: Profile, possible: Sequence[SizeConfig]) -> list[Rung]:
    """The rungs at each budget, of the sizes that were asked for, or else of those around the expected one."""
    config, shape = model_of(profile)
    batch = config.global_batch * shape.context
    chosen = [size_of(profile, width) for width in sorted(set(asked.sizes))]
    rungs, short = [], 0
    for budget in sorted(set(asked.budgets)):
        at = chosen or [_nearest(possible, share * expected_size(budget)) for share in AROUND]
        for of in {one.width: one for one in at}.values():
            steps = round(budget / 6 / of.size / batch)
            if steps >= LEAST_STEPS:
                rungs.append(Rung(of, steps, steps * batch))
            short += steps < LEAST_STEPS
    if not rungs:
        raise ConfigError(
            f"All {short} trainings would be shorter than {LEAST_STEPS} steps.",
            "Give larger budgets, or lower pretrain.global_batch.",
        )
    return rungs


def _nearest(sizes: Sequence[SizeConfig], size: float) -> SizeConfig:
    return min(sizes, key=lambda one: abs(math.log(one.size / size)))


def _warmed(rungs: Sequence[Rung], profile: Profile) -> list[Rung]:
    """The rungs with the warmup of their size."""
    config, shape = model_of(profile)
    share = config.warmup_steps / config.total_steps(shape)
    shortest: dict[int, int] = {}
    for rung in rungs:
        shortest[rung.of.width] = min(rung.steps, shortest.get(rung.of.width, rung.steps))
    return [rung._replace(warmup=max(1, round(share * shortest[rung.of.width]))) for rung in rungs]


def _check_target(asked: AskedLadder, largest: float) -> None:
    if asked.target is not None and asked.target > FARTHEST * largest and not asked.beyond:
        raise ConfigError(
            f"--target {asked.target:.3g} is more than {FARTHEST:g} × the largest training of the ladder, "
            f"{largest:.3g} FLOPs.",
            f"Add a larger budget: a law is trusted up to {FARTHEST:g} ×. Or allow it with --beyond.",
        )


def _by_length(rung: Rung) -> tuple[int, float, int]:
    return rung.of.width, rung.rate, rung.steps


def _in_turn(rungs: Sequence[Rung]) -> list[Rung]:
    """The shortest training of each size first, then the second of each, so that each finds the branch before it, also
    where several go on at once."""
    turns = []
    for _, same in groupby(sorted(rungs, key=_by_length), key=lambda rung: _by_length(rung)[:2]):
        turns += [(turn, -rung.of.width, rung) for turn, rung in enumerate(same)]
    return [rung for *_, rung in sorted(turns)]


def _target(profile: Profile) -> TargetConfig:
    """The profile's own pretraining."""
    config, shape = model_of(profile)
    return TargetConfig(
        of=size_of(profile, shape.width), tokens=config.samples(config.total_steps(shape)) * shape.context
    )


def _matrix(asked: AskedLadder, profile: Profile, rungs: Sequence[Rung]) -> Matrix:
    config, _ = model_of(profile)
    arms, members = [], []
    for number, rung in enumerate(rungs):
        rate = f", rate × {rung.rate:g}" if rung.rate != 1 else ""
        arms.append(Arm(f"{rung.of.name}, {rung.steps:,} steps{rate}", settings_of_rung(profile, rung)))
        of_arm = []
        for seed in range(asked.seeds):
            sets = [*asked.overrides, *(f"{key}={value}" for key, value in arms[-1].settings.items())]
            sets += [f"{key}={config.seed + seed}" for key in seeds_of(profile, "pretrain") if seed]
            parts = [
                f"{rung.of.width}",
                f"{rung.steps}",
                f"rate-{rung.rate:g}" * (rung.rate != 1),
                f"seed-{seed}" * (seed > 0),
            ]
            sets.append(f"name={named(profile.name, *filter(None, parts))}")
            of_arm.append(Member(number, seed, load(asked.profile, sets), sets))
        members.append(of_arm)
    return Matrix(asked.profile, arms, [config.seed + seed for seed in range(asked.seeds)], members, "pretrain")


def settings_of_rung(profile: Profile, rung: Rung) -> dict[str, str]:
    """What a training of the ladder changes of the profile, by key."""
    config, own = model_of(profile)
    chosen = {f"model.{name}": value for name, value in settings_of(profile, rung.of.width).items()}
    chosen |= {"steps": rung.steps, "tokens": "null", "schedule": "wsd", "warmup_steps": rung.warmup}
    chosen |= {"validation_every": NEVER, "sample_prompts": "[]", "snapshot_every": "null"}
    chosen |= {"average": "null", "ema_decay": "null", "final_weights": "last"}
    if config.mup_base_width is None and config.new_model.family != FAMILY_WITHOUT_MUP:
        chosen["mup_base_width"] = own.width
    if rung.rate != 1:
        chosen["learning_rate"] = config.learning_rate * rung.rate
        if config.muon_learning_rate is not None:
            chosen["muon_learning_rate"] = config.muon_learning_rate * rung.rate
    settings = {f"pretrain.{name}": str(value) for name, value in chosen.items()}
    if is_folder(profile.runtime.store):
        settings["runtime.pretrain.branches"] = "true"
    return settings
