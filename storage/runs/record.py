"""The record of a run: one small JSON file under `runs/` of the store, with a name that sorts by time.

    runs/2026-11-24T16-30-11-3f9a2c.json

It is written when a run starts, while it goes on, and when it ends. If a record says `running` but nobody holds its
lease (alive.py), the run crashed. A record names artifacts but keeps none: a collection ignores it.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from storage.errors import DamagedArtifact, StoreError

FOLDER = "runs"
FORMAT = 1

# A waiting run has no process: once a person approves, it restarts, and its new record includes this one
State = Literal["running", "waiting", "completed", "failed", "stopped", "crashed"]


def _time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without its zone")
    return text


Time = Annotated[str, AfterValidator(_time)]
Seconds = Annotated[float, Field(ge=0, le=1e10)]


class Part(BaseModel):
    """A part of a record: immutable, and readable by versions that know fewer fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Estimate(Part):
    """A plan's estimate of a stage before it was made."""

    seconds: Seconds
    fixed: Seconds = Field(0.0, description="the part of them that doesn't depend on size")
    source: str = Field(description="source of the figure: an earlier run, arithmetic, a guess")


class StageRecord(Part):
    """A stage, or a part of one, that a run took from the store or made."""

    location: str
    digest: str = ""
    cached: bool
    why: str = Field("", description="why it was made")
    part_of: str = Field("", description="the stage that obtained it as a part")
    seconds: Seconds = Field(description="seconds that the run spent on it")
    waited: Seconds = Field(0.0, description="further seconds of waiting for other runs, or for a person at a terminal")
    peak_memory_bytes: int | None = Field(
        None, description="peak memory of the largest process that made it, in this run or before"
    )
    figures: dict[str, float] = Field(default_factory=dict, description="the counts of its manifest, flat")


class Score(Part):
    """A score of an evaluation, with its 95 % interval, if any."""

    value: float
    low: float | None = None
    high: float | None = None


class Traced(Part):
    """A run in a catalogue of lineage: its id there, and the stages whose start it knows but not their end, each with
    the stage that it is a part of, if any."""

    run: str
    open: dict[str, str] = {}


class RunRecord(Part):
    """A run. Times are UTC, ISO 8601."""

    format: int = FORMAT
    id: str
    profile: str
    asked: str = Field("", description="the profile as requested: a name or a file")
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
    earlier_seconds: Seconds = Field(0.0, description="seconds before it waited, without a process, for a person")
    state: State = "running"
    error: str = Field("", description="why it failed, as a sentence")
    stages: dict[str, StageRecord] = {}
    working: str = Field("", description="the stage being made at the time of writing")
    waits_for: str = Field("", description="what it waited for at the time of writing: another run, or a person")
    scores: dict[str, Score] = Field(default_factory=dict, description="by model and task")
    estimates: dict[str, Estimate] = Field(default_factory=dict, description="the plan's estimates, by stage to make")
    flow_run: str = Field("", description="Prefect's id")
    flow_run_url: str = Field("", description="its page on Prefect's server, if that outlives the run")
    deployment: str = Field("", description="the deployment that started it, if any")
    traced: Traced | None = Field(None, description="what a catalogue knows of it (runtime.tracking.openlineage)")

    @property
    def seconds(self) -> float | None:
        """The run's duration without the time without a process, or None while it runs. If the clock was set back
        meanwhile, 0."""
        if self.ended is None:
            return None
        took = datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)
        return self.earlier_seconds + max(0.0, took.total_seconds())

    def going_on_from(self, waited: RunRecord) -> RunRecord:
        """This record of a run that resumed after waiting for a person, with what it made before as made."""
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
        """The stages and parts that the run made, in order."""
        return [name for name, stage in self.stages.items() if not stage.cached]

    @property
    def peak_memory_bytes(self) -> int | None:
        """The peak memory of all stages that it made."""
        return max((self.stages[name].peak_memory_bytes or 0 for name in self.made), default=0) or None

    @property
    def planned(self) -> tuple[list[str], float, float]:
        """The stages with an estimate that were made, the seconds expected of them, and the seconds they took."""
        done = [name for name in self.estimates if name in self.made]
        return done, sum(self.estimates[name].seconds for name in done), sum(self.stages[name].seconds for name in done)

    def to_json(self) -> str:
        """JSON, for `parse_record`."""
        return self.model_dump_json() + "\n"


def new_id(now: datetime | None = None) -> str:
    """An id that sorts by time: after the second, three hex digits of its 4,096 parts and three random ones, so that
    two runs don't share it."""
    now = now or datetime.now(UTC)
    return f"{now:%Y-%m-%dT%H-%M-%S}-{now.microsecond * 4096 // 1_000_000:03x}{secrets.randbelow(4096):03x}"


def parse_record(text: str | bytes, name: str) -> RunRecord:
    """Parse a record. Raises DamagedArtifact for an invalid one, StoreError for an unknown format."""
    try:
        record = RunRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        raise DamagedArtifact(
            f"The record of the run {name} is damaged: {problem}.",
            f"Delete {FOLDER}/{name}.json in the store: nothing needs it.",
        ) from error
    if record.id != name:
        raise DamagedArtifact(
            f"The record of the run {name} is damaged: its id is {record.id}.",
            f"Delete {FOLDER}/{name}.json in the store: nothing needs it.",
        )
    if record.format != FORMAT:
        raise StoreError(
            f"The record of the run {name} has format {record.format}, but this version reads format {FORMAT}.",
            "Use the version of Gristmill that wrote it.",
        )
    return record
