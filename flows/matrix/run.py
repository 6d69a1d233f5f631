"""Runs many profiles as one: what several of them need is made once, and shown once.

Every run goes through the same pipeline as a run of its own would. An artifact that an earlier run of the matrix took or
made isn't asked for again, so the flow's graph has each once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flows.pipeline import stages
from flows.pools.dispatch import Elsewhere
from flows.session import whole_of
from profiles.schema import Profile
from profiles.stage_names import TRAINED
from storage.artifact import Artifact
from tasks.evaluate import EvaluateConfig, language_modelling, score
from tasks.evaluate.benchmarks import chosen
from tasks.evaluate.language.config import LanguageConfig
from tasks.stage.config import StageConfig
from tasks.stage.decorator import STAGES
from tasks.stage.display.progress import Renamed
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import Session, open_session


class NamedRun(NamedTuple):
    """A profile to run up to a stage. `data` and `name` are what people see of it: beside stages whose result depends on
    the profile's settings but not on a seed, and beside trainings."""

    profile: Profile
    until: str
    data: str
    name: str


Made = dict[str, Artifact]  # a run's artifacts by stage


@dataclass
class Shared:
    """The artifacts that the runs of a matrix have taken or made so far, by key."""

    session: Session
    known: dict[str, Artifact] = field(default_factory=dict)

    def run(self, one: NamedRun) -> Made:
        """Take or make a run's artifacts, in the order of its pipeline."""
        made: Made = {}

        def call(stage: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
            key = stage.payload(config, inputs).key()
            if key not in self.known:
                self.known[key] = _task(stage.name, config, inputs)
            made[stage.name] = self.known[key]
            return made[stage.name]

        names = {name: self._name(name, one) for name in STAGES}
        session = replace(
            self.session,
            profile=one.profile.name,
            runtime=one.profile.runtime,
            until=one.until,
            call=call,
            elsewhere=Elsewhere(one.profile, one.until, whole_of),
            names=names,
            observer=Renamed(self.session.observer, names),
            checks={},
        )
        with open_session(session):
            stages(one.profile)
        return made

    def _name(self, stage: str, one: NamedRun) -> str:
        named = one.name if stage in TRAINED else one.data
        return f"{stage} {named}".strip()


def _task(name: str, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
    artifact: Artifact = STAGES[name].task(config, *inputs, return_state=True).result()
    return artifact


def measure_text(
    models: Sequence[Artifact], held_out: Artifact, tokenizer: Artifact, config: LanguageConfig
) -> list[Artifact]:
    """The losses of models on the same held-out text, in the ids of `tokenizer`. Those that are missing are measured in
    one process."""
    calls = [(config, (model, held_out, tokenizer)) for model in models]
    found: list[Artifact] = language_modelling.task_of_several(calls, return_state=True).result()
    return found


def measure_answers(
    models: Mapping[str, Artifact], benchmarks: Artifact, config: EvaluateConfig
) -> dict[str, Artifact]:
    """The answers of models to every benchmark that asks for likelihoods, by the model's name, a dot and the
    benchmark's."""
    asked = {label: one for label, one in chosen(config, benchmarks).items() if not one.wants_text}
    calls = {
        f"{name}.{label}": (one.config, (model, one.data))
        for name, model in models.items()
        for label, one in asked.items()
    }
    if not calls:
        return {}
    found: list[Artifact] = score.task_of_several([*calls.values()], return_state=True).result()
    return dict(zip(calls, found, strict=True))
