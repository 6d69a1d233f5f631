"""What a run came to: a row a stage, for the terminal and for the run's page in Prefect."""

from __future__ import annotations

from typing import Any

from flows.progress import duration, size_of
from profiles.schema import STAGE_NAMES
from storage import refs
from storage.artifact import Artifact
from storage.manifest import Manifest
from storage.store import Store
from tasks.stage.pages import embed_plots, markdown_table
from tasks.stage.session import current


def newest(store: Store, profile: str, until: str | None = None) -> dict[str, Artifact]:
    """The newest artifact of every stage that the profile has made, in the pipeline's order, up to `until`."""
    found = {}
    for stage in STAGE_NAMES[: STAGE_NAMES.index(until) + 1] if until else STAGE_NAMES:
        entries = refs.history(store, f"{profile}/{stage}")
        if entries:
            found[stage] = store.get(entries[-1].location)
    return found


def summary(made: dict[str, Artifact]) -> list[dict[str, str]]:
    """Stage, result, size and time of each."""
    rows = []
    for stage, artifact in made.items():
        manifest = artifact.manifest
        assert manifest is not None
        seconds = duration(float(manifest.facts.get("seconds", 0)))
        rows.append({"stage": stage, "result": result_of(manifest), "size": size_of(manifest.size), "made in": seconds})
    return rows


def result_of(manifest: Manifest) -> str:
    """One line of what a stage's counts say."""
    counts = manifest.counts
    if "summary" in counts:
        return str(counts["summary"])
    documents: dict[str, Any] = counts.get("documents", {})
    if not documents:
        return ""
    removed = sum(documents["removed"].values())
    text = f"{documents['in']:,} documents in, {documents['kept']:,} kept"
    text += f", {removed:,} removed" if removed else ""
    return text + (f", {documents['quarantined']:,} quarantined" if documents["quarantined"] else "")


def publish_report() -> None:
    """The artifact `run-report` of the current flow run: the summary, and every loss curve."""
    from prefect.artifacts import create_markdown_artifact

    session = current()
    assert session is not None
    made = newest(session.store, session.profile, session.until)
    parts = [f"# {session.profile}", markdown_table(summary(made))]
    for stage, artifact in made.items():
        plots = embed_plots(artifact)
        parts += [f"## {stage}", *plots] if plots else []
    create_markdown_artifact(markdown="\n\n".join(parts), key="run-report", description="What this run came to")
