"""A run's request to a worker of a work pool: one stage, with its config and the locations of its inputs in the store.

It does not send the profile, whose keys would have to be computed again from the sources, which the other machine may
not have. The worker computes the key of its stage and compares it with the key that the run expects.
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
    """An input's location in the store, and its digest, which enters the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    location: str
    part: str
    digest: str

    @classmethod
    def of(cls, artifact: Artifact) -> Place:
        """The place of an artifact or a part of one."""
        return cls(location=artifact.location, part=artifact.part_name, digest=artifact.digest)

    def artifact(self, store: Store) -> Artifact:
        """The artifact at this place. Raises StoreError, and PoolError if it has another digest."""
        artifact = store.get(self.location)
        artifact = artifact.part(self.part) if self.part else artifact
        if artifact.digest != self.digest:
            raise PoolError(f"{self.location} differs from what the run saw.", "Run `gristmill store verify`.")
        return artifact


class Work(BaseModel):
    """A stage to make."""

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
        """The work of a stage's call. `refresh` names the stages and parts to rebuild."""
        places: list[Place | dict[str, Place] | None] = []
        for each in inputs:
            if isinstance(each, Mapping):
                places.append({name: Place.of(artifact) for name, artifact in each.items()})
            else:
                places.append(None if each is None else Place.of(each))
        return cls(
            stage=stage.name, key=key, config=config.model_dump(mode="json"), inputs=places, refresh=sorted(refresh)
        )

    def call(self, stage: Stage, store: Store) -> tuple[StageConfig, list[Input]]:
        """The config and the inputs of the stage's call."""
        kind = typing.get_type_hints(inspect.unwrap(stage.function))["config"]
        inputs: list[Input] = []
        for each in self.inputs:
            if isinstance(each, dict):
                inputs.append({name: place.artifact(store) for name, place in each.items()})
            else:
                inputs.append(None if each is None else each.artifact(store))
        return kind.model_validate(self.config), inputs


class Order(BaseModel):
    """An order to a worker: make a stage, or without `work`, say whether you see the run's `folder`."""

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
        """The order of a run. The other machine decides what the profile leaves open, such as the number of workers,
        and sends nothing to pools itself."""
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
