"""Successive halving (Jamieson and Talwalkar 2016): arms that look hopeless after a part of training are given up.

A part is a training of its own with fewer steps, so that its learning rate has come down when it is measured. With the
schedule wsd the longer one then goes on where the shorter one began to decay.
"""

from __future__ import annotations

import json

from flows.estimates.arithmetic import shape_to_train
from flows.matrix.arms import Matrix, Member
from flows.matrix.measured import Measured, measured
from flows.matrix.run import Shared
from profiles.schema import Profile
from storage.errors import ConfigError
from tasks.ablate.stage import held_out_loss

SHARES = (0.25, 0.5)  # of the steps
LENGTHS = ("pretrain.steps", "pretrain.tokens")
WARMUPS = ("warmup_steps", "context_warmup_steps", "batch_warmup_steps")


def halved(matrix: Matrix, shared: Shared, jobs: int) -> tuple[Matrix, dict[str, int], dict[str, str]]:
    """The matrix without the arms that were given up, after how many steps each was, and those that diverged, with how.
    The reference stays."""
    check_halving(matrix)
    stopped, diverged = dict[str, int](), dict[str, str]()
    for share in SHARES:
        if len(matrix.arms) < 3:
            break
        runs = measured(shortened(matrix, share), shared, jobs)
        best = _best_half(runs)
        gone = [arm.name for arm in runs.matrix.arms if arm.name not in best]
        stopped |= dict.fromkeys(gone, steps_of(runs.matrix.reference))
        diverged |= runs.diverged
        if gone:
            shared.session.observer.noted("ablate", f"given up after {share:.0%} of the steps: {'; '.join(gone)}")
        matrix = matrix.only([number for number, arm in enumerate(matrix.arms) if arm.name in best])
    return matrix, stopped, diverged


def announced(matrix: Matrix) -> str:
    """How many runs of how many steps there are, as long as none diverges. Raises ConfigError as check_halving."""
    check_halving(matrix)
    arms, seeds, parts = len(matrix.arms), len(matrix.seeds), []
    for share in SHARES:
        if arms < 3:
            break
        parts.append(f"{arms * seeds:,} runs of {steps_of(shortened(matrix.only([0]), share).reference):,} steps")
        arms = 1 + arms // 2
    if not parts:
        return "--halve gives up none of fewer than three arms."
    return f"--halve makes {' and '.join(parts)}, then only {arms * seeds:,} of the runs above to the end."


def check_halving(matrix: Matrix) -> None:
    """Raises ConfigError for a matrix whose trainings can't be shortened."""
    if matrix.link != "pretrain":
        raise ConfigError(f"--halve shortens pretraining, but {matrix.link} is measured.", "Leave --halve out.")
    for arm in matrix.arms:
        if named := [key for key in arm.settings if key in LENGTHS]:
            raise ConfigError(f"--halve sets the steps, which {named[0]} varies.", "Leave --halve out.")


def _best_half(runs: Measured) -> set[str]:
    """The names of the reference and of the better half of the other arms, by their loss on held-out text."""
    losses, arms = held_out_loss(*runs.inputs({})), runs.matrix.arms
    others = sorted(range(1, len(losses)), key=lambda arm: losses[arm])
    return {arms[number].name for number in (0, *others[: (len(others) + 1) // 2])}


def shortened(matrix: Matrix, share: float) -> Matrix:
    """The same arms with a share of the steps."""
    members = [[_shortened(matrix, member, share) for member in arm] for arm in matrix.members]
    return matrix._replace(members=members)


def _shortened(matrix: Matrix, member: Member, share: float) -> Member:
    profile = member.profile
    config, shape = profile.pretrain, shape_to_train(profile)
    if config is None or shape is None:
        raise ConfigError(f"The steps of {profile.name} aren't known.", "Leave --halve out.")
    steps = max(1, round(share * config.total_steps(shape)))
    sets = [f"pretrain.steps={steps}", "pretrain.tokens=null"]
    for name in WARMUPS:
        before = getattr(config, name)
        # A stable phase is the same for all lengths only if its warmup is
        if before and (config.schedule != "wsd" or before >= steps / 2):
            sets.append(f"pretrain.{name}={max(1, round(share * before))}")
    if config.curriculum:
        changes = [change.model_dump(mode="json") for change in config.curriculum]
        for change in changes:
            change["from_step"] = max(2, round(share * change["from_step"]))
        sets.append(f"pretrain.curriculum={json.dumps(changes)}")
    return matrix.with_sets(member, sets, f"of-{steps}-steps")


def steps_of(profile: Profile) -> int:
    """The steps of a shortened profile."""
    assert profile.pretrain is not None
    assert profile.pretrain.steps is not None
    return profile.pretrain.steps
