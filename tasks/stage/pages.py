"""Pages of Markdown for the Prefect UI: an artifact's tables and plots, in one piece that needs no file."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.artifact import Artifact

MAX_PLOT_BYTES = 200_000  # a Prefect artifact must stay under 1 MB, a run report holds three, and base64 adds a third


def publish_page(stage: str, artifact: Artifact, *, cached: bool) -> None:
    """Show an artifact's page in the Prefect UI, on the page of the running task."""
    from prefect.artifacts import create_markdown_artifact

    key = prefect_key(f"stage-{stage}")
    create_markdown_artifact(markdown=report(artifact, cached=cached), key=key, description=stage)


def prefect_key(name: str) -> str:
    """A name as the key of a Prefect artifact: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def report(artifact: Artifact, *, cached: bool) -> str:
    """An artifact's page in the Prefect UI: what it is, its tables, its plots."""
    manifest = artifact.manifest
    assert manifest is not None
    state = "from the store" if cached else f"made in {manifest.facts['seconds']:.1f} s"
    lines = [f"## {manifest.stage}: {state}", "", f"`{artifact.location}` · {manifest.size:,} bytes"]
    for name, rows in {**manifest.counts.get("tables", {}), **manifest.facts.get("tables", {})}.items():
        lines += ["", f"### {name}", "", markdown_table(rows)]
    for plot in embed_plots(artifact):
        lines += ["", plot]
    return "\n".join(lines)


def embed_plots(artifact: Artifact) -> list[str]:
    """The artifact's plots as Markdown images that need no file. Of a bucket's artifact those that are on this machine:
    a page is no reason to fetch one."""
    names = artifact.names("*.png")
    return [embed_plot(artifact.file(name)) for name in names if (artifact.folder / name).is_file()]


# Control characters, which would make a file binary, as the pictures that Unicode has of them
SHOWN = {chr(code): chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"}


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as a Markdown table."""
    if not rows:
        return "(empty)"
    heads = list(rows[0])
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    shown = str.maketrans({"|": "·", **SHOWN})
    lines += [f"| {' | '.join(str(row.get(head, '')).translate(shown) for head in heads)} |" for row in rows]
    return "\n".join(lines)


def embed_plot(plot: Path) -> str:
    """A PNG file as a Markdown image that needs no file."""
    data = plot.read_bytes()
    if len(data) > MAX_PLOT_BYTES:
        return f"({plot.name} is too large to show here)"
    return f"![{plot.stem}](data:image/png;base64,{base64.b64encode(data).decode()})"
