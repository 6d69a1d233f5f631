"""The results of a run: a row a stage for the terminal, and the run's page in Prefect, `run-report`.

The page shows what this run took and made, not what the profile's refs name, which another run may have moved. A run
that fails or is stopped has one too, up to that point.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from flows.pages.bars import Bar, draw_bars
from flows.records.recorder import Asked
from flows.stop import waits_for
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import GristmillError
from storage.manifest import Manifest
from storage.units import duration, size_of
from tasks.download.config import PAIR_ROLES
from tasks.stage.display.pages import (
    KEY_SHOWN,
    Markup,
    embed_plots,
    escaped,
    input_of,
    linked,
    making_of,
    measured,
    readable_table,
    time_of,
)
from tasks.stage.history import NEVER_MADE
from tasks.stage.session import Session, Step

LOSSES = "loss*.png"
PLOTS_BYTES = 700_000  # of all loss curves: a Prefect artifact must stay under 1 MB
INDENT = "\N{EN SPACE}" * 2  # of a part: plain blanks are dropped
SHOWN = 2  # reasons in a table: the bars have more
BARS = 12  # the longest, of times, memory and reasons


def made_by(session: Session, profile: Profile) -> dict[str, Artifact]:
    """The artifact of each stage that a run took or made, in the profile's order."""
    return {stage: session.steps[stage].artifact for stage in profile.stage_names if stage in session.steps}


def summary(session: Session, profile: Profile) -> list[dict[str, str]]:
    """Rows of stage, result, size, what this run did, and how long making took, whenever that was."""
    rows = []
    for stage, artifact in made_by(session, profile).items():
        manifest, step = artifact.manifest, session.steps[stage]
        assert manifest is not None
        this = "from the store" if step.cached else f"made in {duration(step.worked)}"
        rows.append(
            {
                "stage": stage,
                "result": result_of(manifest),
                "size": size_of(manifest.size),
                "this run": this,
                "making took": making_of(manifest),
            }
        )
    return rows


def result_of(manifest: Manifest) -> str:
    """A stage's counts in one line."""
    counts = manifest.counts
    if "summary" in counts:
        return str(counts["summary"])
    documents = counts.get("documents")
    if not isinstance(documents, dict):  # in a stage that measures documents it is their number
        return ""
    removed = sum(documents["removed"].values())
    text = f"{documents['in']:,} documents in, {documents['kept']:,} kept"
    text += f", {removed:,} removed" if removed else ""
    text += f", {documents['quarantined']:,} quarantined" if documents["quarantined"] else ""
    pairs = sum(counts.get(f"{role}_quarantined", 0) for role in PAIR_ROLES)
    return text + (f", {pairs:,} pairs quarantined" if pairs else "")


def run_page(
    session: Session, profile: Profile, asked: Asked, seconds: float, error: BaseException | None = None
) -> str:
    """The page of a run as Markdown. `error` is what ended it early."""
    parts = [
        f"# {_title(session, error)}",
        *_error(session, error),
        _in_short(session, seconds),
        *_asked(asked, profile),
        "## Stages",
        readable_table([*_rows(session, profile, asked.to, error)]),
        _results(session),
        *_funnel(session, profile),
        *_scores(session),
        *_costs(session),
        *_losses(session, profile),
        *_lineage(session),
    ]
    traffic = session.told_traffic()
    return "\n\n".join([*parts, *([f"Bucket: {traffic}."] if traffic else [])])


def _title(session: Session, error: BaseException | None) -> str:
    where = "".join(f" in {name}" for name in [*session.unfinished][:1])
    if error is None:
        return f"{session.profile}: completed"
    if waits_for(error):
        return f"{session.profile}: waits for approval{where}"
    return f"{session.profile}: {'failed' if isinstance(error, Exception) else 'stopped'}{where}"


def _error(session: Session, error: BaseException | None) -> Iterator[str]:
    """The error that ended the run, where, and what to do."""
    if error is None:
        return
    within = " > ".join(f"`{name}`" for name in session.unfinished)
    if isinstance(error, GristmillError):
        yield f"> **{within or 'Before the first stage'}:** {escaped(error.message)}"
        yield f"> {escaped(error.remedy)}" if error.remedy else ""
    elif isinstance(error, Exception):
        yield f"> **{within or 'Before the first stage'}:** {escaped(f'{type(error).__name__}: {error}')}"
        yield "> This is a defect. The run's log has its traceback."
    elif waits := waits_for(error):
        yield f"> {escaped(waits)}"
        return
    else:
        yield f"> The run was cancelled or interrupted{f' while it worked on {within}' if within else ''}."
    yield "Finished stages are in the store. Run it again to go on from there."


def _in_short(session: Session, seconds: float) -> str:
    made = [name for name, step in session.steps.items() if not step.cached]
    taken = len(session.steps) - len(made)
    waited = sum(session.waits)
    text = f"**{len(made)} made now, {taken} from the store**, stages and their parts, in {duration(seconds)}"
    return text + (f", {duration(waited)} of it waiting for other runs." if waited >= 1 else ".")


def _asked(asked: Asked, profile: Profile) -> Iterator[str]:
    """The run's request."""
    lines = [f"profile `{profile.name}`, store `{profile.runtime.store}`"]
    lines += [f"up to `{asked.to}`"] if asked.to else []
    lines += [f"rebuilt, even if stored: {', '.join(f'`{name}`' for name in asked.refresh)}"] * bool(asked.refresh)
    lines += [f"`{setting}`" for setting in asked.overrides]
    yield "\n".join(f"- {line}" for line in lines)


def _rows(session: Session, profile: Profile, to: str | None, error: BaseException | None) -> Iterator[dict[str, str]]:
    """A row for each stage with its parts below it, then where the run stopped and what it did not reach."""
    for name, depth in _tree(session):
        step = session.steps.get(name)
        indent = f"{INDENT * (depth - 1)}↳ " if depth else ""
        if step is None:
            yield {
                "stage": Markup(f"{indent}**{name}**"),
                "": Markup("**stopped here**"),
                "in this run": duration(time.monotonic() - session.unfinished[name]),
            }
            continue
        took = measured(step.artifact.manifest) if step.artifact.manifest and not step.others else {}
        number = f" ({1 + len(step.others)})" if step.others else ""
        yield {
            "stage": Markup(f"{indent}{linked(name, session)}{number}"),
            "": "from the store" if step.cached else Markup("**made now**"),
            "in this run": time_of(step),
            **{head: took.get(head, "") for head in ("making took", "CPU", "peak memory")},
            "size": size_of(sum(one.manifest.size for one in (step.artifact, *step.others) if one.manifest)),
        }
        if step.others:
            yield from _together(name, step, session, depth + 1)
    if error is not None:
        for name in profile.names_to(to):
            if name not in session.steps and name not in session.unfinished:
                yield {"stage": name, "": "not reached"}


def _together(name: str, step: Step, session: Session, depth: int) -> Iterator[dict[str, str]]:
    """A row for each artifact that was obtained together with others, by the stage's name for it."""
    whole = session.steps.get(step.part_of)
    uses = whole.artifact.manifest.uses if whole and whole.artifact.manifest else {}
    named = {ref.location: other.removeprefix(f"{name}.") for other, ref in uses.items()}
    for one in (step.artifact, *step.others):
        if one.manifest is None:
            continue
        took = measured(one.manifest)
        stage, _, key = one.location.partition("/")
        title = escaped(named.get(one.location, "")) or f"`{stage}/{key[:KEY_SHOWN]}`"
        yield {
            "stage": Markup(f"{INDENT * (depth - 1)}↳ {title}"),
            "": Markup("**made now**") if one.location in step.made else "from the store",
            **{head: took.get(head, "") for head in ("making took", "CPU", "peak memory", "size")},
        }


def _tree(session: Session) -> list[tuple[str, int]]:
    """Stages in the order they finished, each followed by its parts, then unfinished ones. With their depth."""
    parts: dict[str, list[str]] = {}
    for name, step in session.steps.items():
        parts.setdefault(step.part_of, []).append(name)
    for above, name in zip(["", *session.unfinished], session.unfinished, strict=False):
        if name not in session.steps:
            parts.setdefault(above, []).append(name)

    def below(name: str, depth: int) -> Iterator[tuple[str, int]]:
        for part in parts.get(name, []):
            yield part, depth
            yield from below(part, depth + 1)

    return [*below("", 0)]


def _results(session: Session) -> str:
    """Each stage's result, and why it was made. Omits parts that are stored or were made for the first time."""
    lines = []
    for name, step in session.steps.items():
        result = result_of(step.artifact.manifest) if step.artifact.manifest and not step.others else ""
        why = f"made now, {step.why}" if step.why else ""
        if step.part_of and step.why in ("", NEVER_MADE):
            continue
        if text := "; ".join(escaped(part) for part in (result, why) if part):
            lines.append(f"- **{name}**: {text}")
    return "\n".join(lines)


def _funnel(session: Session, profile: Profile) -> Iterator[str]:
    """The documents through all stages that count them: what each removed, by reason."""
    rows, bars = [], list[Bar]()
    for name in made_by(session, profile):
        documents = _documents(session.steps[name])
        if not documents or name in profile.links:  # those read pairs
            continue
        removed = {**documents["removed"], **({"quarantined": q} if (q := documents["quarantined"]) else {})}
        order = sorted(removed.items(), key=lambda item: -item[1])
        for reason, count in order:
            share = f"{count:,} ({count / max(1, documents['in']):.1%} of what came in)"
            bars.append(Bar(f"{name}: {reason}", count, share))
        reasons = [f"{escaped(reason)} {count:,}" for reason, count in order]
        more = [f"{len(order) - SHOWN} more"] if len(order) > SHOWN else []
        rows.append(
            {
                "stage": name,
                "in": documents["in"],
                "removed": sum(removed.values()),
                "kept": documents["kept"],
                "by reason": Markup(", ".join([*reasons[:SHOWN], *more])),
            }
        )
    if not rows:
        return
    yield "## Documents"
    first, last = rows[0], rows[-1]
    yield f"{first['in']:,} in, **{last['kept']:,} kept** after {last['stage']}. Removed, by stage and reason:"
    if bars:
        yield draw_bars(sorted(bars, key=lambda bar: -bar.length)[:BARS], "documents removed")
    yield readable_table(rows)


def _documents(step: Step) -> dict[str, Any]:
    counts = step.artifact.manifest.counts.get("documents") if step.artifact.manifest else None
    return counts if isinstance(counts, dict) else {}


def _scores(session: Session) -> Iterator[str]:
    step = session.steps.get("evaluate")
    tables = step.artifact.manifest.counts.get("tables", {}) if step and step.artifact.manifest else {}
    if tables.get("Scores"):
        yield "## Scores"
        yield readable_table(tables["Scores"])


def _costs(session: Session) -> Iterator[str]:
    """The time of this run by stage, parts included, and the peak memory of each stage's making."""
    whole = {name: step for name, step in session.steps.items() if not step.part_of}
    times = sorted(((step.seconds, name, step) for name, step in whole.items()), reverse=True, key=lambda row: row[0])
    yield "## Time and memory"
    if times:
        yield "Time of this run by stage, parts included. Orange: made now."
        yield draw_bars(
            [Bar(name, seconds, time_of(step), not step.cached) for seconds, name, step in times[:BARS]], "time"
        )
    peaks = [
        (step.artifact.manifest.facts["peak_memory_bytes"], name, step)
        for name, step in whole.items()
        if step.artifact.manifest and "peak_memory_bytes" in step.artifact.manifest.facts
    ]
    if peaks:
        yield "Peak memory of making each stage, now or earlier."
        peaks = sorted(peaks, reverse=True, key=lambda row: row[0])
        yield draw_bars(
            [Bar(name, size, size_of(size), not step.cached) for size, name, step in peaks[:BARS]], "memory"
        )


def _losses(session: Session, profile: Profile) -> Iterator[str]:
    """The loss curves, as many as fit."""
    room = PLOTS_BYTES
    for stage, artifact in made_by(session, profile).items():
        plots = embed_plots(artifact, LOSSES)
        size = sum(map(len, plots))
        if plots and size <= room:
            room -= size
            yield f"## Loss of {stage}"
            yield from plots
        elif plots:
            yield f"The loss of {stage} is on its page: {linked(stage, session)}."


def _lineage(session: Session) -> Iterator[str]:
    """Every artifact, its folder in the store, and its inputs."""
    lines = []
    for name, step in session.steps.items():
        manifest = step.artifact.manifest
        refs = list(manifest.origins.values()) if manifest and not step.others else []
        made_of = f" of {', '.join(input_of(ref, session) for ref in refs)}" if refs else ""
        places = ", ".join(f"`artifacts/{one.location}`" for one in (step.artifact, *step.others))
        lines.append(f"- {linked(name, session)}{made_of}: {places}")
    if lines:
        yield "## Lineage"
        yield f"Each is a folder under `{session.store.root}`."
        yield "\n".join(lines)
