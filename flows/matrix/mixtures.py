"""The matrices of `gristmill mix`: a swarm of mixtures at the size of a proxy, and the runs that check the proposal."""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from flows.deployed.parameters import MOST_SEEDS
from flows.estimates.arithmetic import shape_to_train
from flows.matrix.arms import Arm, Matrix, matrix_from, seed_of
from flows.matrix.earlier import Earlier
from flows.matrix.halving import shortened
from flows.provenance import TOKENS
from profiles.load import load
from profiles.schema import Profile
from storage.errors import ConfigError
from storage.manifest import Manifest
from tasks.ablate.config import Target
from tasks.ablate.held_out import LEAST
from tasks.ablate.mix import MixConfig
from tasks.ablate.mix.swarm import LEAST_SLOT, Shares, default_runs, drawn, even, largest_shares, rounded

LINK, MIXTURE = "pretrain", "pretrain.mixture"
DRAWN = (MIXTURE, "pretrain.max_epochs", "pretrain.curriculum")  # of all runs: no settings of the proxy
MOST_RUNS = 1000
PROXY_SHARE = 0.25  # of the profile's steps, if the proxy isn't described
EPOCHS = 4.0  # up to which repeated text is worth almost as much as new text (Muennighoff et al. 2023, section 6)
NATURAL, PROPOSED, EVEN = "natural proportions", "proposed", "as even as the repeats allow"


@dataclass(frozen=True)
class AskedMix:
    """A mixture that is sought, as in its command. `proxy` are settings of the small runs, and `target` names with or
    without weights."""

    profile: str
    overrides: Sequence[str] = ()
    proxy: Sequence[str] = ()
    runs: int | None = None
    seeds: int = 3
    sources: Sequence[str] = ()
    target: Sequence[str] = ()
    max_epochs: float | None = None
    full: bool = False

    @property
    def reference(self) -> Profile:
        """The profile, whose settings were checked as far as it suffices for that. Raises ConfigError."""
        profile = load(self.profile, self.overrides)
        if profile.pretrain is None:
            raise ConfigError(f"{profile.name} trains on no documents.", "Give a profile with pretrain.")
        if profile.pretrain.curriculum:
            raise ConfigError(
                "pretrain.curriculum changes the mixture during a run, but mix seeks one for all of it.",
                "Add --set pretrain.curriculum=[].",
            )
        names = list(self.sources) or profile.document_sources
        check_known("--sources", names, profile.document_sources)
        check_once("--sources", names)
        if len(names) < 2:
            raise ConfigError(f"One source of documents ({', '.join(names)}) has nothing to be mixed with.", "Add one.")
        if not 0 <= self.seeds <= MOST_SEEDS:
            raise ConfigError(f"{self.seeds} seeds are not between 0 and {MOST_SEEDS}.", "Three to five are usual.")
        if self.full and not self.seeds:
            raise ConfigError("--full is of the check, which --seeds 0 leaves out.", "Leave one of them out.")
        self.check_runs(len(self.sources) or 2)
        self.target_of(profile, names)
        self.small()
        return profile

    def check_runs(self, sources: int) -> None:
        """Raises ConfigError if as many sources can't be told apart by so few runs."""
        if self.runs is not None and self.runs < sources + 2:
            raise ConfigError(
                f"{self.runs} runs are too few for {sources} sources.",
                f"Give --runs {sources + 2} or more: the default is {default_runs(sources)}.",
            )
        if self.runs is not None and self.runs > MOST_RUNS:
            raise ConfigError(f"{self.runs:,} runs are more than {MOST_RUNS:,}.", "Give --runs a smaller number.")

    def small(self) -> Profile:
        """The profile at the size of the proxy. Raises ConfigError."""
        for key, separator, _ in (one.partition("=") for one in self.proxy):
            if key.partition(".")[0] != "pretrain":
                raise ConfigError(f"--proxy {key} is no setting of pretraining.", "Use --set for others.")
            if not separator:
                raise ConfigError(f"--proxy {key} lacks a value.", f"Write --proxy {key}=VALUE.")
            if key.startswith(DRAWN):
                raise ConfigError(f"--proxy {key}: mix itself sets it.", "--max-epochs limits the repeats.")
        return self.matrix([Arm(NATURAL, {})], range(1)).reference

    def target_of(self, profile: Profile, mixed: Sequence[str]) -> Target:
        """The sources whose held-out text is the target, or weights of these, of files and of benchmarks. By default
        those that are `mixed`. Raises ConfigError."""
        weights: dict[str, float | None] = {}
        check_once("--target", [one.rpartition("=")[0] or one for one in self.target])
        for one in self.target:
            name, separator, weight = one.rpartition("=") if "=" in one else (one, "", "")
            try:
                weights[name] = float(weight) if separator else None
            except ValueError as error:
                raise ConfigError(
                    f"--target {one}: {weight} is not a weight.", "Write --target NAME=NUMBER."
                ) from error
            if separator and not 0 < float(weight) < math.inf:
                raise ConfigError(
                    f"--target {one}: a weight is a finite number above 0.", "Leave it out, or give another."
                )
        if not weights:
            return list(mixed)
        known = [*profile.document_sources]
        if profile.evaluate is not None:
            tasks = profile.evaluate.asked(profile.download.benchmark_names)
            known += [*profile.evaluate.language.files, *(task.label for task in tasks)]
        check_known("--target", list(weights), known)
        given = {name: weight for name, weight in weights.items() if weight is not None}
        if given and len(given) < len(weights):
            raise ConfigError("--target has names with and without weights.", "Give each a weight, or none.")
        if not given and not {*weights} <= {*profile.document_sources}:
            raise ConfigError(
                "--target has no weights, which only held-out text of sources has by itself.",
                "Write --target NAME=NUMBER.",
            )
        return given or list(weights)

    def matrix(self, arms: Sequence[Arm], seeds: Sequence[int], *, full: bool = False) -> Matrix:
        """The runs of some mixtures, of the size of the proxy, or in `full` of the profile's own."""
        sets = [*self.overrides, "pretrain.max_epochs=null", *(() if full else self.proxy)]
        first = seed_of(load(self.profile, sets), LINK)
        matrix = matrix_from(self.profile, sets, arms, [first + seed for seed in seeds], LINK)
        return matrix if full or self.proxy else shortened(matrix, PROXY_SHARE)


class Grounds(NamedTuple):
    """What a swarm is drawn on: the sources, their shares of the training tokens, and the largest shares that a proxy
    and the profile's own run can read without repeating a source too often."""

    names: list[str]
    natural: Shares
    of_proxy: Shares
    of_profile: Shares
    held_out: dict[str, int]  # documents, of every source of the profile

    def shares(self, of: Shares) -> dict[str, float]:
        """Shares by source, without those that get nothing."""
        return {name: share for name, share in zip(self.names, of.tolist(), strict=True) if share}


def check_known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raises ConfigError for a name that isn't known."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ConfigError(
                f"{option} names {name}, which {'is no source' if option == '--sources' else 'is not measured'}.",
                f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}.",
            )


def check_once(option: str, names: Sequence[str]) -> None:
    """Raises ConfigError for a name that comes twice."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigError(f"{option} names {twice[0]} twice.", "Name it once.")


def grounds_of(asked: AskedMix, profile: Profile, tokens: Manifest | None) -> Grounds:
    """The grounds, by the counts of the token shards. Without these, as if all sources were alike, for a plan.

    Raises ConfigError for a source without tokens, and for too few tokens.
    """
    named = list(asked.sources) or profile.document_sources
    if tokens is None:
        even_share, free = np.full(len(named), 1 / len(named)), np.ones(len(named))
        return Grounds(named, even_share, free, free, {})
    rows = tokens.counts["tables"][TOKENS]
    counts = {row["source"]: int(row["tokens"]) for row in rows if row["split"] == "train"}
    names = [name for name in named if counts.get(name)]
    if asked.sources and len(names) < len(named):
        raise ConfigError(
            f"{', '.join(sorted({*named} - {*names}))} has no tokens left to train on.",
            "Loosen the filter, or leave it out of --sources.",
        )
    if len(names) < 2:
        raise ConfigError("Fewer than two sources have tokens to train on.", "Loosen the filter, or add a source.")
    sizes = np.array([counts[name] for name in names], float)
    natural = np.where(sizes / sizes.sum() < LEAST_SLOT, 0.0, sizes / sizes.sum())
    natural /= natural.sum()
    epochs = np.array([_allowed(asked, profile, name) for name in names])
    proxy = asked.small()
    limits = [largest_shares(sizes, reads(one), epochs) for one in (proxy, profile)]
    for limit, one in zip(limits, (proxy, profile), strict=True):
        if limit.sum() < 1 or np.any(natural > limit):
            raise ConfigError(
                f"A run of {reads(one):,} tokens reads all {int(sizes.sum()):,} of its sources more than "
                f"{', '.join(sorted({f'{each:g}' for each in epochs.tolist()}))} times.",
                "Train on fewer tokens, add documents, or raise --max-epochs.",
            )
    held_out = {row["source"]: int(row["documents"]) for row in rows if row["split"] == "validation"}
    return Grounds(names, natural, limits[0], limits[1], held_out)


def target_on(asked: AskedMix, profile: Profile, grounds: Grounds) -> Target:
    """The target, by default of the sources that have enough held-out documents. Raises ConfigError for a target that
    has too few."""
    target = asked.target_of(profile, grounds.names)
    measured = [name for name, documents in grounds.held_out.items() if documents]
    if len(measured) == 1:
        raise ConfigError(
            f"Only documents of {measured[0]} are held out, so no source is measured on its own.",
            "Raise tokenize.validation_share, or add documents.",
        )
    few = [name for name in target if grounds.held_out.get(name, LEAST) < LEAST]
    if isinstance(target, list) and not asked.target and len(few) < len(target):
        return [name for name in target if name not in few]
    if few:
        raise ConfigError(
            f"Fewer than {LEAST} documents are held out of {', '.join(few)}.",
            "Raise tokenize.validation_share, or leave it out of the target.",
        )
    return target


def _allowed(asked: AskedMix, profile: Profile, source: str) -> float:
    """How often a source may be read."""
    own = profile.pretrain.epochs_allowed(source) if profile.pretrain else None
    return asked.max_epochs or own or EPOCHS


def reads(profile: Profile) -> int:
    """The tokens that a profile's run reads."""
    config, shape = profile.pretrain, shape_to_train(profile)
    assert config is not None
    if shape is None:
        raise ConfigError(
            f"The shape of the base of {profile.name} isn't known here.", "Run `gristmill run --to base`."
        )
    context = config.sequence or shape.context
    return config.samples(config.total_steps(replace(shape, context=context))) * context


def check_target(profile: Profile, target: Target, benchmarks: Collection[str]) -> None:
    """Raises ConfigError for a benchmark of the target that isn't among those `benchmarks` that ask how likely answers
    are."""
    files = profile.evaluate.language.files if profile.evaluate else {}
    for name in target:
        if name not in (*profile.document_sources, *files, *benchmarks):
            raise ConfigError(
                f"The target {name} doesn't ask how likely its right answers are.",
                f"Benchmarks that do: {', '.join(benchmarks) or 'none of this profile'}.",
            )


class SwarmOf(NamedTuple):
    """The mixtures to train, natural proportions first, and those whose models an earlier swarm left."""

    trained: list[dict[str, float]]
    earlier: list[dict[str, float]]


def swarm_of(asked: AskedMix, grounds: Grounds, old: Earlier | None = None) -> SwarmOf:
    """The mixtures of a swarm. With an `old` one only those of the added sources are new, and the first of the old ones
    if its model has seen other tokens: both models of it tell what these change."""
    asked.check_runs(len(grounds.names))
    known = [np.array([one.get(name, 0.0) for name in grounds.names]) for one in (old.swarm if old else [])]
    added = len(grounds.names) - int(np.any(np.array(known) > 0, axis=0).sum()) if known else len(grounds.names)
    count = asked.runs or len(known) + default_runs(added)
    mixtures = [grounds.shares(one) for one in drawn(grounds.natural, grounds.of_proxy, count, old=known)]
    if old is None or not old.models:
        return SwarmOf(mixtures, [])
    return SwarmOf([*mixtures[:2], *mixtures[1 + len(known) :]], old.swarm)


def swarm_matrix(asked: AskedMix, swarm: Sequence[Mapping[str, float]]) -> Matrix:
    """A run of each mixture, with the profile's own seed: more mixtures tell more than more seeds."""
    arms = [arm_of(NATURAL if not number else f"mixture {number}", one) for number, one in enumerate(swarm)]
    return asked.matrix(arms, range(1))


def check_matrix(asked: AskedMix, grounds: Grounds, proposal: Mapping[str, float]) -> Matrix:
    """Natural proportions, the proposal, and the heuristic that needs only counts, with seeds that no run of the swarm
    had."""
    limit = np.minimum(grounds.of_profile, 1.0)
    arms = [
        arm_of(NATURAL, grounds.shares(grounds.natural)),
        arm_of(PROPOSED, proposal),
        arm_of(EVEN, grounds.shares(rounded(even(limit)))),
    ]
    return asked.matrix(arms, range(1, asked.seeds + 1), full=asked.full)


def arm_of(name: str, mixture: Mapping[str, float]) -> Arm:
    """An arm of a mixture."""
    return Arm(name, {MIXTURE: json.dumps(mixture)})


def mixture_of(arm: Arm) -> dict[str, float]:
    """The mixture of an arm."""
    mixture: dict[str, float] = json.loads(arm.settings[MIXTURE])
    return mixture


def mix_config(profile: Profile, grounds: Grounds, swarm: SwarmOf, old: Earlier | None, target: Target) -> MixConfig:
    """The config of the stage that fits the swarm."""
    return MixConfig(
        natural=dict.fromkeys(grounds.names, 0.0) | grounds.shares(grounds.natural),
        swarm=[*swarm.trained, *swarm.earlier],
        earlier=len(swarm.earlier),
        held_out=[profile.tokenize.validation_share, old.validation_share] if old and old.models else [],
        target=target,
        most=dict(zip(grounds.names, grounds.of_profile.tolist(), strict=True)),
    )
