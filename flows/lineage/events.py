"""OpenLineage's events of a run and of its stages, as plain data without credentials.

The classes of openlineage-python give each facet its required fields and the URL of its schema. Facets of our own have
schemas in facets-1-0-0.json beside this file. Needs the extra `openlineage`.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

from flows.lineage import datasets
from flows.lineage.datasets import Named
from storage.artifact import Artifact
from storage.credentials import redact
from storage.manifest import Manifest
from storage.runs.record import RunRecord
from storage.store import Store
from tasks.stage.session import Step

PRODUCER = "https://github.com/gristmill/gristmill"
SCHEMA = f"{PRODUCER}/blob/main/flows/lineage/facets-1-0-0.json#/$defs"
ENGINE = "Gristmill"

Kind = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]


@dataclass(frozen=True)
class Job:
    """A run, or one stage of it: its job's name, its own id, and the run or stage that it is a part of."""

    namespace: str
    name: str
    run: str
    described: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: Job | None = None
    stage: str = ""  # empty for a run

    def child(self, profile: str, stage: str, described: str = "") -> Job:
        """The job of a stage. Its id follows from the run's, so that another process can name it too."""
        root = self.root
        run = str(uuid.uuid5(uuid.UUID(root.run), stage))
        tags = {"profile": profile, "stage": stage}
        return Job(self.namespace, f"{profile}.{stage}", run, described, tags, self, stage)

    @property
    def root(self) -> Job:
        """The run."""
        return self.parent.root if self.parent else self


@functools.cache
def _events() -> Any:
    return import_module("openlineage.client.event_v2")


@functools.cache
def _facets() -> Any:
    return import_module("openlineage.client.facet_v2")


def new_run() -> str:
    """An id for a run."""
    return str(uuid.uuid4())


def event(
    kind: Kind,
    job: Job,
    *,
    time: str = "",
    error: str = "",
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    facets: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An event. `time` is ISO 8601, now by default. `facets` are more facets of the run."""
    run_facets: dict[str, Any] = {
        "processing_engine": _facets().processing_engine_run.ProcessingEngineRunFacet(
            version("gristmill"), ENGINE, version("gristmill")
        ),
        **(facets or {}),
    }
    if job.parent:
        run_facets["parent"] = _parent(job.parent)
    if error:
        run_facets["errorMessage"] = _facets().error_message_run.ErrorMessageRunFacet(error, "PYTHON")
    made = _events().RunEvent(
        eventTime=time or now(),
        producer=PRODUCER,
        run=_events().Run(job.run, run_facets),
        job=_events().Job(job.namespace, job.name, _job_facets(job)),
        eventType=_events().RunState[kind],
        inputs=list(inputs),
        outputs=list(outputs),
    )
    plain: dict[str, Any] = _plain(import_module("openlineage.client.serde").Serde.to_dict(made))
    return plain


def now() -> str:
    """The time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _plain(value: Any) -> Any:
    """JSON values without credentials, and with our producer in every facet."""
    if isinstance(value, Mapping):
        return {key: PRODUCER if key == "_producer" else _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return redact(value) if isinstance(value, str) else value


def _parent(job: Job) -> Any:
    facet, root = _facets().parent_run, job.root
    return facet.ParentRunFacet(
        facet.Run(job.run),
        facet.Job(job.namespace, job.name),
        facet.Root(facet.RootRun(root.run), facet.RootJob(root.namespace, root.name)),
    )


def _job_facets(job: Job) -> dict[str, Any]:
    kind = "TASK" if job.parent else "DAG"
    tags = [_facets().tags_job.TagsJobFacetFields(key, value, ENGINE.upper()) for key, value in job.tags.items()]
    facets: dict[str, Any] = {
        "jobType": _facets().job_type_job.JobTypeJobFacet("BATCH", ENGINE.upper(), kind),
        "tags": _facets().tags_job.TagsJobFacet(tags),
    }
    if job.described:
        facets["documentation"] = _facets().documentation_job.DocumentationJobFacet(job.described)
    return facets


def run_facet(record: RunRecord, steps: Mapping[str, Step] | None = None) -> dict[str, Any]:
    """Which artifacts a run made, and which it took from the store, by its steps. Without them it is the first of each
    stage, by the record."""
    found = [(name, stage.location, stage.digest, stage.cached) for name, stage in record.stages.items()]
    if steps is not None:
        found = [
            (name, one.location, one.digest, one.location not in step.made if step.others else step.cached)
            for name, step in steps.items()
            for one in (step.artifact, *step.others)
        ]
    stages = [dict(zip(("name", "location", "digest", "fromStore"), one, strict=True)) for one in found]
    return {"gristmill_run": _own("GristmillRunRunFacet", record=record.id, stages=stages)}


def made(store: Store, named: Named, artifact: Artifact) -> Any:
    """An artifact as the output of the stage that made it."""
    manifest = artifact.manifest
    assert manifest is not None
    facets = _artifact_facets(store, artifact.location, manifest, ())
    if columns := datasets.columns_of(artifact):
        facets["schema"] = _schema(columns)
    statistics = _facets().output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=datasets.rows_of(manifest), size=manifest.size, fileCount=len(manifest.files)
    )
    return _events().OutputDataset(
        named.namespace, named.name, facets=facets, outputFacets={"outputStatistics": statistics}
    )


def read(store: Store, named: Named, location: str, manifest: Manifest, parts: Sequence[str]) -> Any:
    """An artifact, or `parts` of it, as an input."""
    facets = _artifact_facets(store, location, manifest, parts)
    return _events().InputDataset(named.namespace, named.name, facets=facets)


def source(named: Named) -> Any:
    """A source outside the store as an input."""
    facets: dict[str, Any] = {
        "dataSource": _facets().datasource_dataset.DatasourceDatasetFacet(named.namespace, named.namespace)
    }
    if named.version:
        facets["version"] = _facets().dataset_version_dataset.DatasetVersionDatasetFacet(named.version)
    return _events().InputDataset(named.namespace, named.name, facets=facets)


def _artifact_facets(store: Store, location: str, manifest: Manifest, parts: Sequence[str]) -> dict[str, Any]:
    where = datasets.namespace_of(store)
    own = _own(
        "GristmillArtifactDatasetFacet",
        stage=manifest.stage,
        stageVersion=manifest.payload.version,
        location=location,
        digest=manifest.digest,
        address=datasets.place_of(store, location),
        **({"parts": list(parts)} if parts else {}),
    )
    return {
        "dataSource": _facets().datasource_dataset.DatasourceDatasetFacet(where, where),
        "version": _facets().dataset_version_dataset.DatasetVersionDatasetFacet(manifest.digest),
        "documentation": _facets().documentation_dataset.DocumentationDatasetFacet(
            f"The artifact of Gristmill's stage {manifest.stage}, as `gristmill store show {location}` prints it"
        ),
        "gristmill_artifact": own,
    }


def _schema(columns: Mapping[str, Sequence[tuple[str, str]]]) -> Any:
    """The columns of each folder below a field of its name."""
    facet = _facets().schema_dataset
    fields = [
        facet.SchemaDatasetFacetFields(
            folder, "struct", fields=[facet.SchemaDatasetFacetFields(name, kind) for name, kind in named]
        )
        for folder, named in columns.items()
    ]
    return facet.SchemaDatasetFacet(fields)


def _own(name: str, **values: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": f"{SCHEMA}/{name}", **values}
