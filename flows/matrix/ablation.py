"""The flow of `gristmill ablate`: a matrix of runs, measured on the same text, and compared."""

from __future__ import annotations

from prefect import flow

from flows.deployed.parameters import Arms, Each, Halve, Jobs, Link, ProfileName, Seeds, Settings, Varied
from flows.deployed.run_lifecycle import told
from flows.matrix.arms import Matrix, matrix_of
from flows.matrix.halving import halved
from flows.matrix.ladder import flops_of
from flows.matrix.lanes import jobs_of
from flows.matrix.measured import measure_answers, measured
from flows.matrix.predicted import stored_ladder
from flows.matrix.run import Shared
from flows.pages.names import name_as
from flows.session import start
from storage.artifact import Artifact
from tasks.ablate import ablate
from tasks.ablate.stage import place
from tasks.stage.session import Session, current


@flow(name="ablate", flow_run_name=name_as("ablate {profile}"))
@told
def ablation(
    profile: ProfileName = "tiny",
    vary: Varied = (),
    arm: Arms = (),
    seeds: Seeds = 3,
    overrides: Settings = (),
    each: Each = False,
    link: Link = None,
    jobs: Jobs = None,
    halve: Halve = False,
) -> str:
    """Whether a change helps: the profile as it is beside each value of the settings in `vary` (`key=value`, or
    `key=[value, value]`) and each `arm` of several, with as many `seeds`. With `each`, one change at a time. `link` is
    the stage whose model is measured, and `jobs` how many trainings go on at once, by default one on each GPU. With
    `halve`, the worse half of the arms is given up after a quarter, and again after half of the steps."""
    matrix = matrix_of(profile, overrides, vary, seeds, arm=arm, each=each, link=link)
    with start(profile, overrides, matrix.link, ()):
        session = current()
        assert session is not None
        return compared(matrix, session, jobs_of(matrix.reference, jobs), halve=halve).location


def compared(matrix: Matrix, session: Session, jobs: int = 1, *, halve: bool = False) -> Artifact:
    """Make all runs of a matrix, measure them, and compare them."""
    shared, stopped, diverged = Shared(session), dict[str, int](), dict[str, str]()
    if halve:
        matrix, stopped, diverged = halved(matrix, shared, jobs)
    runs = measured(matrix, shared, jobs)
    runs = runs._replace(diverged=diverged | runs.diverged)
    config, text, documents, ledgers = runs.inputs(stopped)
    ladder = None
    if matrix.link == "pretrain":
        ladder = stored_ladder(runs.matrix.reference, session.store, runs.made[place(0, 0)])
    if ladder is not None:
        arms = zip(config.arms, runs.matrix.members, strict=True)
        config = config.model_copy(
            update={"arms": [arm.model_copy(update={"flops": flops_of(first.profile)}) for arm, (first, *_) in arms]}
        )
    return ablate(config, text, measure_answers(runs, shared), documents, ledgers, ladder)
