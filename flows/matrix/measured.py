"""Runs the members of a matrix, and measures their models on the same held-out text: that of the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flows.matrix.arms import Matrix, Member
from flows.matrix.run import Made, NamedRun, Shared
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import Divergence
from tasks.ablate.config import AblateConfig, ArmConfig
from tasks.ablate.held_out import check_enough, fair_documents
from tasks.ablate.stage import place
from tasks.evaluate import language_modelling, score
from tasks.evaluate.benchmarks import Chosen, chosen
from tasks.evaluate.language.config import LanguageConfig
from tasks.training.chain import BASE

Documents = dict[str, Artifact]  # by the number of an arm


class Measured(NamedTuple):
    """A matrix with what its runs made, and their losses on held-out documents, both by `place(arm, seed)`. Arms that
    diverged are no longer in it."""

    matrix: Matrix
    made: dict[str, Made]
    text: dict[str, Artifact]
    diverged: dict[str, str]  # by arm, why

    def inputs(self, stopped: dict[str, int]) -> tuple[AblateConfig, dict[str, Artifact], Documents, Documents]:
        """What their comparison takes, but for answers. `stopped` are arms that were given up before, with the steps
        that they made."""
        first = [self.made[place(number, 0)] for number in range(len(self.matrix.arms))]
        config = _config(self.matrix).model_copy(update={"stopped": stopped, "diverged": self.diverged})
        return config, self.text, _documents(first), _ledgers(first)


def measured(matrix: Matrix, shared: Shared, jobs: int) -> Measured:
    """Make all runs of a matrix, and measure their models. Needs a flow."""
    members = [member for arm in matrix.members for member in arm]
    runs = [_run(matrix, member) for member in members]
    prepared = shared.prepare([_run(matrix, arm[0]) for arm in matrix.members])
    _check_documents(matrix, prepared)
    found = shared.run_all(runs, jobs)
    diverged: dict[str, str] = {}
    for member, error in zip(members, found, strict=True):
        if isinstance(error, Divergence):
            if not member.arm:
                raise error
            diverged.setdefault(matrix.arms[member.arm].name, error.message)
    by_place = {(member.arm, member.seed): one for member, one in zip(members, found, strict=True)}
    sound = [number for number, arm in enumerate(matrix.arms) if arm.name not in diverged]
    matrix = matrix.only(sound)
    made = {
        place(arm, seed): one
        for arm, number in enumerate(sound)
        for seed in range(len(matrix.seeds))
        if not isinstance(one := by_place[number, seed], Divergence)
    }
    models = {name: one[matrix.link].part("model") for name, one in made.items()}
    return Measured(matrix, made, measure_text(matrix.reference, made[place(0, 0)], models, shared), diverged)


def measure_text(profile: Profile, made: Made, models: Mapping[str, Artifact], shared: Shared) -> dict[str, Artifact]:
    """The losses of models, by name, on the held-out text of a run."""
    config, (held_out, tokenizer) = _language(profile), _held_out(made)
    return shared.together(
        language_modelling, {name: (config, (model, held_out, tokenizer)) for name, model in models.items()}
    )


def measure_answers(
    runs: Measured, shared: Shared, others: Mapping[str, Artifact] | None = None
) -> dict[str, Artifact]:
    """The answers of all models, and of `others` by name, to every benchmark of the reference that asks for
    likelihoods, by the name of a run, a dot, and the benchmark's."""
    asked = with_likelihoods(runs.matrix.reference, runs.made[place(0, 0)])
    models = {name: one[runs.matrix.link].part("model") for name, one in runs.made.items()}
    calls = {
        f"{name}.{label}": (one.config, (model, one.data))
        for name, model in (models | dict(others or {})).items()
        for label, one in asked.items()
    }
    return shared.together(score, calls)


def with_likelihoods(profile: Profile, made: Made) -> dict[str, Chosen]:
    """The benchmarks of a profile, by label, that ask how likely answers are."""
    if profile.evaluate is None:
        return {}
    known = chosen(profile.evaluate, made["download"].part("benchmarks"))
    return {label: one for label, one in known.items() if not one.wants_text}


def _check_documents(matrix: Matrix, prepared: Sequence[Made]) -> None:
    """Raises EmptyOutput if there are too few held-out documents to compare models on, before any is trained."""
    documents = _documents(prepared)
    if not documents:
        return
    shares = [_share(arm[0].profile) or 0.0 for arm in matrix.members]
    ledgers = _ledgers(prepared)
    numbers = [str(number) for number in range(len(prepared))]
    fair = fair_documents(
        [documents[number] for number in numbers], shares, [ledgers.get(number) for number in numbers]
    )
    check_enough(fair)


def _documents(made: Sequence[Made]) -> Documents:
    """Each arm's documents, as they were tokenized. None for a base without documents."""
    found = {}
    for number, mine in enumerate(made):
        if "tokenize" in mine:
            found[str(number)] = tokenized(mine)
    return found


def tokenized(made: Made) -> Artifact:
    """The documents of a run, as they were tokenized."""
    last = next(name for name in ("filter", "dedup", "synthesise", "download") if name in made)
    return made[last].part("documents")


def _ledgers(made: Sequence[Made]) -> Documents:
    """What dedup removed of each arm's documents."""
    return {str(number): mine["dedup"].part("ledger") for number, mine in enumerate(made) if "dedup" in mine}


def _config(matrix: Matrix) -> AblateConfig:
    arms = [
        ArmConfig(name=arm.name, settings=dict(arm.settings), validation_share=_share(members[0].profile))
        for arm, members in zip(matrix.arms, matrix.members, strict=True)
    ]
    return AblateConfig(arms=arms, seeds=matrix.seeds, link=matrix.link)


def _run(matrix: Matrix, member: Member) -> NamedRun:
    data = matrix.arms[member.arm].name if member.arm else ""
    return NamedRun(member.profile, matrix.link, data, matrix.name_of(member))


def _held_out(made: Made) -> tuple[Artifact, Artifact]:
    """The held-out text of a run, and the tokenizer of its ids: benchmarks for a base without documents."""
    if "tokenize" not in made:
        return made["download"].part("benchmarks"), made[BASE].part("model")
    tokenizer = made["tokenizer"] if "tokenizer" in made else made[BASE].part("model")
    return made["tokenize"].part("validation"), tokenizer


def _language(profile: Profile) -> LanguageConfig:
    """How held-out text is measured: as the profile says, but all of it, as more documents tell more. Samples of models
    with different tokenizers would be of different text."""
    config = profile.evaluate.language if profile.evaluate else LanguageConfig()
    return config.model_copy(update={"validation_tokens": None})


def _share(profile: Profile) -> float | None:
    return profile.tokenize.validation_share if profile.pretrain else None
