"""What a run came to: a row a stage, for the terminal and for the run's page in Prefect."""

from __future__ import annotations

from typing import Any

from profiles.schema import Profile
from storage.artifact import Artifact
from storage.manifest import Manifest
from storage.units import duration, size_of
from tasks.download.config import PAIR_ROLES
from tasks.stage.pages import embed_plots, markdown_table
from tasks.stage.session import Session, current


def made_by(session: Session, profile: Profile) -> dict[str, Artifact]:
    """What a run took or made for each stage of its profile, in their order. Not what the profile's refs name: another
    run of it may have moved them since."""
    return {stage: session.steps[stage].artifact for stage in profile.stage_names if stage in session.steps}


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
    text += f", {documents['quarantined']:,} quarantined" if documents["quarantined"] else ""
    pairs = sum(counts.get(f"{role}_quarantined", 0) for role in PAIR_ROLES)
    return text + (f", {pairs:,} pairs quarantined" if pairs else "")


def publish_report(profile: Profile) -> None:
    """The artifact `run-report` of the current flow run: the summary, and every loss curve."""
    from prefect.artifacts import create_markdown_artifact

    session = current()
    assert session is not None
    made = made_by(session, profile)
    parts = [f"# {session.profile}", markdown_table(summary(made))]
    for stage, artifact in made.items():
        plots = embed_plots(artifact)
        parts += [f"## {stage}", *plots] if plots else []
    traffic = session.told_traffic()
    parts += [f"Bucket: {traffic}."] if traffic else []
    create_markdown_artifact(markdown="\n\n".join(parts), key="run-report", description="What this run came to")
