"""What a run asks of a worker of a work pool: one stage, with its config and the places of its inputs in the store.

Not the profile: its keys would have to be found again from the sources on, which the other machine need not have. The
worker computes the key of what it makes and compares it with the one that the run expects.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from storage.artifact import Artifact
from storage.errors import PoolError
from storage.store import Store
from tasks.shards.broadcast import code_digest
from tasks.shards.worker_checks import libraries
from tasks.stage.config import StageConfig
from tasks.stage.decorator import Stage
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import Session


class Place(BaseModel):
    """Where an input lies in the store, and the digest that enters the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    location: str
    part: str
    digest: str

    @classmethod
    def of(cls, artifact: Artifact) -> Place:
        """That of an artifact or a part of one."""
        return cls(location=artifact.location, part=artifact.part_name, digest=artifact.digest)

    def found(self, store: Store) -> Artifact:
        """What lies there. Raises StoreError, and PoolError where it is something else."""
        artifact = store.get(self.location)
        artifact = artifact.part(self.part) if self.part else artifact
        if artifact.digest != self.digest:
            raise PoolError(f"{self.location} has other bytes than the run saw.", "Run `gristmill store verify`.")
        return artifact


class Work(BaseModel):
    """A stage to be made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    key: str
    config: dict[str, Any]
    inputs: list[Place | dict[str, Place] | None]
    refresh: list[str]

    @classmethod
    def of_call(
        cls, stage: AnyStage, key: str, config: StageConfig, inputs: Sequence[Input], refresh: Iterable[str]
    ) -> Work:
        """That of a stage's call; `refresh` names the stages and parts to be made anew."""
        places: list[Place | dict[str, Place] | None] = []
        for given in inputs:
            if isinstance(given, Mapping):
                places.append({name: Place.of(artifact) for name, artifact in given.items()})
            else:
                places.append(None if given is None else Place.of(given))
        return cls(
            stage=stage.name, key=key, config=config.model_dump(mode="json"), inputs=places, refresh=sorted(refresh)
        )

    def call(self, stage: Stage, store: Store) -> tuple[StageConfig, list[Input]]:
        """The config and the inputs of the stage's call."""
        kind = typing.get_type_hints(inspect.unwrap(stage.function))["config"]
        inputs: list[Input] = []
        for given in self.inputs:
            if isinstance(given, dict):
                inputs.append({name: place.found(store) for name, place in given.items()})
            else:
                inputs.append(None if given is None else given.found(store))
        return kind.model_validate(self.config), inputs


class Order(BaseModel):
    """What a worker is asked: to make a stage, or, without `work`, whether it sees the `folder` of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: str
    profile: str
    runtime: dict[str, Any]
    code: str
    libraries: list[str]
    folder: str = ""
    work: Work | None = None

    @classmethod
    def of(cls, session: Session, *, folder: str = "", work: Work | None = None) -> Order:
        """That of a run. What its profile leaves open, such as the number of workers, the other machine decides; and
        it gives nothing to pools itself."""
        store = session.store
        url = str(Path(store.root).absolute()) if store.is_folder else store.url
        runtime = session.runtime.model_dump(
            mode="json", exclude_unset=True, exclude={"store", "pools", "approve", "approve_hours"}
        )
        return cls(
            store=url,
            profile=session.profile,
            runtime={**runtime, "store": url},
            code=code_digest(),
            libraries=list(libraries()),
            folder=folder,
            work=work,
        )
