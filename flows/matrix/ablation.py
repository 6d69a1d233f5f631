"""The flow of `gristmill ablate`: a matrix of runs, measured on the same text, and compared."""

from __future__ import annotations

from collections.abc import Mapping

from prefect import flow

from flows.deployed.parameters import ProfileName, Settings
from flows.deployed.run_lifecycle import told
from flows.matrix.arms import Matrix, Member, matrix_of
from flows.matrix.lanes import jobs_of
from flows.matrix.run import Made, NamedRun, Shared, measure_answers, measure_text
from flows.pages.names import name_as
from flows.session import start
from profiles.schema import Profile
from storage.artifact import Artifact
from tasks.ablate import AblateConfig, ArmConfig, ablate
from tasks.ablate.stage import place
from tasks.evaluate.language.config import LanguageConfig
from tasks.stage.session import Session, current
from tasks.training.chain import BASE


@flow(name="ablate", flow_run_name=name_as("ablate {profile}"))
@told
def ablation(
    profile: ProfileName = "tiny",
    vary: Settings = (),
    seeds: int = 3,
    overrides: Settings = (),
    each: bool = False,
    link: str | None = None,
    jobs: int | None = None,
) -> str:
    """Whether a change helps: the profile as it is beside each value of the settings in `vary` (`key=value`, or
    `key=[value, value]`), with as many `seeds`. With `each`, one change at a time. `link` is the stage whose model is
    measured, and `jobs` how many trainings go on at once, by default one on each GPU."""
    matrix = matrix_of(profile, overrides, vary, seeds, each=each, link=link)
    with start(profile, overrides, matrix.link, ()):
        session = current()
        assert session is not None
        return compare_arms(matrix, session, jobs_of(matrix.reference, jobs)).location


def compare_arms(matrix: Matrix, session: Session, jobs: int = 1) -> Artifact:
    """Make all runs of a matrix, measure them, and compare them. Needs a flow."""
    members = [member for arm in matrix.members for member in arm]
    found = Shared(session).run_all([_run(matrix, member) for member in members], jobs)
    made = {place(member.arm, member.seed): one for member, one in zip(members, found, strict=True)}
    models = {name: model_of(one, matrix.link) for name, one in made.items()}
    first = made[place(0, 0)]
    held_out, tokenizer = held_out_of(first)
    text = measure_text([*models.values()], held_out, tokenizer, _language(matrix))
    evaluate = matrix.reference.evaluate
    answers = measure_answers(models, first["download"].part("benchmarks"), evaluate) if evaluate else {}
    documents, ledgers = _documents(matrix, made)
    return ablate(_config(matrix), dict(zip(models, text, strict=True)), answers, documents, ledgers)


def _run(matrix: Matrix, member: Member) -> NamedRun:
    data = matrix.arms[member.arm].name if member.arm else ""
    return NamedRun(member.profile, matrix.link, data, matrix.name_of(member))


def model_of(made: Made, link: str) -> Artifact:
    """The model of a run."""
    return made[link].part("model")


def held_out_of(made: Made) -> tuple[Artifact, Artifact]:
    """The held-out text of a run, and the tokenizer of its ids: benchmarks for a base without documents."""
    if "tokenize" not in made:
        return made["download"].part("benchmarks"), made[BASE].part("model")
    tokenizer = made["tokenizer"] if "tokenizer" in made else made[BASE].part("model")
    return made["tokenize"].part("validation"), tokenizer


def _language(matrix: Matrix) -> LanguageConfig:
    """How held-out text is measured: as the profile says, but all of it, as more documents tell more. Samples of models
    with different tokenizers would be of different text."""
    reference = matrix.reference
    config = reference.evaluate.language if reference.evaluate else LanguageConfig()
    return config.model_copy(update={"validation_tokens": None})


def _documents(matrix: Matrix, made: Mapping[str, Made]) -> tuple[dict[str, Artifact], dict[str, Artifact]]:
    """Each arm's documents, and what dedup removed of them, by the arm's number."""
    documents, ledgers = {}, {}
    for number in range(len(matrix.arms)):
        mine = made[place(number, 0)]
        last = next((name for name in ("filter", "dedup", "synthesise", "download") if name in mine), None)
        if "tokenize" in mine and last is not None:
            documents[str(number)] = mine[last].part("documents")
        if "dedup" in mine:
            ledgers[str(number)] = mine["dedup"].part("ledger")
    return documents, ledgers


def _config(matrix: Matrix) -> AblateConfig:
    arms = [
        ArmConfig(name=arm.name, settings=dict(arm.settings), validation_share=_share(members[0].profile))
        for arm, members in zip(matrix.arms, matrix.members, strict=True)
    ]
    return AblateConfig(arms=arms, seeds=matrix.seeds, link=matrix.link)


def _share(profile: Profile) -> float | None:
    return profile.tokenize.validation_share if profile.pretrain else None
