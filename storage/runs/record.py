"""The record of a run: one small JSON file under `runs/` of the store, named so that names sort by time.

    runs/2026-11-24T16-30-11-3f9a2c.json

It is written when a run begins, again while it goes on, and when it ends. A record that says `running` though nobody
holds its lease (alive.py) is that of a run that crashed. It names artifacts but keeps none: a collection deletes them
as if there were no record.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from storage.errors import DamagedArtifact, StoreError

FOLDER = "runs"
FORMAT = 1

# One that waits has no process: when a person has approved, it begins again, and its new record takes this one over
State = Literal["running", "waiting", "completed", "failed", "stopped", "crashed"]


def _time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without its zone")
    return text


Time = Annotated[str, AfterValidator(_time)]
Seconds = Annotated[float, Field(ge=0, le=1e10)]


class Part(BaseModel):
    """Of records: immutable, and read by versions that know fewer fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Estimate(Part):
    """What a plan expected of a stage before it was made."""

    seconds: Seconds
    fixed: Seconds = Field(0.0, description="of these, what no size changes")
    source: str = Field(description="where the figure comes from: an earlier run, arithmetic, a guess")


class StageRecord(Part):
    """What a run took or made of a stage, or of a part of one."""

    location: str
    digest: str = ""
    cached: bool
    why: str = Field("", description="it was made")
    part_of: str = Field("", description="the stage that obtained it while it worked")
    seconds: Seconds = Field(description="that the run spent on it")
    waited: Seconds = Field(0.0, description="that it waited for other runs besides, or for a person at a terminal")
    peak_memory_bytes: int | None = Field(
        None, description="of the largest process that made it, in this run or before"
    )
    figures: dict[str, float] = Field(default_factory=dict, description="what its manifest counts, flat")


class Score(Part):
    """A score of an evaluation, with its 95 % interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


class RunRecord(Part):
    """A run. Times are UTC, ISO 8601."""

    format: int = FORMAT
    id: str
    profile: str
    asked: str = Field("", description="the profile as it was asked for: a name, or a file")
    overrides: list[str] = []
    to: str | None = None
    refresh: list[str] = []
    config: dict[str, Any] = Field(description="the resolved profile without its runtime")
    runtime: dict[str, Any] = {}
    host: str
    process: int
    seen_everywhere: bool = Field(False, description="other machines can tell whether it still runs")
    started: Time
    ended: Time | None = None
    earlier_seconds: Seconds = Field(0.0, description="that it took before it waited, without a process, for a person")
    state: State = "running"
    error: str = Field("", description="why it failed, in a sentence")
    stages: dict[str, StageRecord] = {}
    working: str = Field("", description="the stage that was being made when this was written")
    waits_for: str = Field("", description="what it waited for when this was written: another run, or a person")
    scores: dict[str, Score] = Field(default_factory=dict, description="by model and task")
    estimates: dict[str, Estimate] = Field(
        default_factory=dict, description="of the plan, by stage that had to be made"
    )
    flow_run: str = Field("", description="Prefect's id")
    flow_run_url: str = Field("", description="where Prefect's server shows it, if that outlives the run")
    deployment: str = Field("", description="that started it, if one did")

    @property
    def seconds(self) -> float | None:
        """How long it took, but for the time without a process; None of one that has not ended. A clock that was put
        back meanwhile makes it 0."""
        if self.ended is None:
            return None
        took = datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)
        return self.earlier_seconds + max(0.0, took.total_seconds())

    def going_on_from(self, waited: RunRecord) -> RunRecord:
        """This record of a run that has gone on since it waited for a person: what it made before, it has made."""
        made = {name: stage for name, stage in waited.stages.items() if not stage.cached}
        mine = {
            name: made[name] if name in made and stage.cached and stage.location == made[name].location else stage
            for name, stage in self.stages.items()
        }
        estimates = {**waited.estimates, **self.estimates}
        return self.model_copy(
            update={"stages": {**made, **mine}, "estimates": estimates, "earlier_seconds": waited.seconds or 0.0}
        )

    @property
    def made(self) -> list[str]:
        """The stages and parts that it made, in order."""
        return [name for name, stage in self.stages.items() if not stage.cached]

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most of what it made."""
        return max((self.stages[name].peak_memory_bytes or 0 for name in self.made), default=0) or None

    @property
    def planned(self) -> tuple[list[str], float, float]:
        """The stages that a plan had an estimate of and that were made; the seconds that it expected, and those that
        they took."""
        done = [name for name in self.estimates if name in self.made]
        return done, sum(self.estimates[name].seconds for name in done), sum(self.stages[name].seconds for name in done)

    def to_json(self) -> str:
        """JSON, for `parsed`."""
        return self.model_dump_json() + "\n"


def new_id(now: datetime | None = None) -> str:
    """An id that sorts by time: after the second, three hex digits of its 4,096 parts and three at random, so that two
    runs don't share it."""
    now = now or datetime.now(UTC)
    return f"{now:%Y-%m-%dT%H-%M-%S}-{now.microsecond * 4096 // 1_000_000:03x}{secrets.randbelow(4096):03x}"


def parsed(text: str | bytes, name: str) -> RunRecord:
    """A record. Raises DamagedArtifact for what is none, StoreError for a format that this version does not know."""
    try:
        record = RunRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        told = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        raise DamagedArtifact(
            f"The record of the run {name} is damaged: {told}.",
            f"Delete {FOLDER}/{name}.json in the store: nothing needs it.",
        ) from error
    if record.id != name:
        raise DamagedArtifact(
            f"The record of the run {name} is damaged: it says that it is {record.id}.",
            f"Delete {FOLDER}/{name}.json in the store: nothing needs it.",
        )
    if record.format != FORMAT:
        raise StoreError(
            f"The record of the run {name} has format {record.format}; this version reads format {FORMAT}.",
            "Use the version of Gristmill that wrote it.",
        )
    return record
