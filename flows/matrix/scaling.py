"""The flow of `gristmill scaling`: a ladder of trainings, measured on the same text, and the law of it."""

from __future__ import annotations

from prefect import flow

from flows.deployed.parameters import Beyond, Budgets, CheckRate, Compute, Jobs, ProfileName, Seeds, Settings, Widths
from flows.deployed.run_lifecycle import told
from flows.matrix.ladder import AskedLadder, Ladder, ladder_of
from flows.matrix.lanes import jobs_of
from flows.matrix.measured import measured
from flows.matrix.run import Shared
from flows.pages.names import name_as
from flows.session import start
from storage.artifact import Artifact
from tasks.ablate.scaling import scaling
from tasks.ablate.stage import place
from tasks.stage.session import Session, current


@flow(name="scaling", flow_run_name=name_as("scaling {profile}"))
@told
def law_of_ladder(
    profile: ProfileName = "tiny",
    budgets: Budgets = (),
    sizes: Widths = (),
    seeds: Seeds = 1,
    target: Compute = None,
    overrides: Settings = (),
    check_rate: CheckRate = False,
    beyond: Beyond = False,
    jobs: Jobs = None,
) -> str:
    """How the loss falls with size and tokens: small trainings for each of the `budgets` in FLOPs, at widths around the
    best one or of these `sizes`. `target` is a compute to predict. With `check_rate`, other learning rates are tried at
    the smallest and the largest size."""
    asked = AskedLadder(profile, [*overrides], [*budgets], [*sizes], seeds, target, check_rate, beyond, jobs)
    ladder = ladder_of(asked)
    with start(profile, overrides, "pretrain", ()):
        session = current()
        assert session is not None
        return fitted(ladder, session, jobs_of(ladder.profile, jobs)).location


def fitted(ladder: Ladder, session: Session, jobs: int = 1) -> Artifact:
    """Make all trainings of a ladder, measure them, and fit their law. Sizes and lengths that diverged are left out."""
    found = measured(ladder.matrix, Shared(session), jobs)
    numbers = {arm.name: number for number, arm in enumerate(ladder.matrix.arms)}
    rungs = {
        place(number, seed): ladder.config.rungs[place(numbers[arm.name], seed)]
        for number, arm in enumerate(found.matrix.arms)
        for seed in range(len(found.matrix.seeds))
    }
    return scaling(ladder.config.model_copy(update={"rungs": rungs, "diverged": found.diverged}), found.text)
