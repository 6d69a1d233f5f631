"""A stage in the Prefect UI: how its task ends, and a page of Markdown on the artifact that a run took or made.

Links are relative to the server: `/artifacts/artifact/ID` is the page that this run wrote, `/artifacts/key/KEY` the
pages of all runs. Tables on a page are made for reading: numbers to the right, long text last and cut.
"""

from __future__ import annotations

import base64
import functools
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from storage.artifact import Artifact
from storage.errors import GristmillError
from storage.units import duration, size_of

if TYPE_CHECKING:
    from prefect.exceptions import TerminationSignal

    from storage.manifest import InputRef, Manifest
    from tasks.stage.session import Session, Step

MAX_PLOT_BYTES = 200_000  # a Prefect artifact must stay under 1 MB, a run report holds three, and base64 adds a third
KEY_SHOWN = 6  # hex digits of a key that tell a profile's artifacts apart
LONG, CUT = 40, 100  # characters from which a cell's column goes last, and at which it is cut
STOPPED = "The run was stopped while it worked on this."
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


class Markup(str):
    """A cell that is Markdown already: links, emphasis. Any other cell is plain text that may hold anything."""

    __slots__ = ()


def in_task() -> bool:
    """Whether this code runs in a Prefect task, without importing Prefect to know."""
    if "prefect" not in sys.modules:
        return False
    from prefect.context import TaskRunContext

    return TaskRunContext.get() is not None


def call_within(task: Any, *arguments: Any) -> Any:
    """Call a task from the body of another one, outside its transaction. Within it, Prefect would show this task as
    rolled back if the outer one failed later, though its artifact is in the store."""
    from prefect.transactions import CommitMode, get_transaction

    if around := get_transaction():
        around.commit_mode = CommitMode.EAGER
    return task(*arguments, return_state=True).result()


def interrupts() -> tuple[type[BaseException], ...]:
    """The exceptions that a signal raises within a flow run. Call it only while one is raised: it imports Prefect."""
    from prefect.exceptions import TerminationSignal

    return KeyboardInterrupt, TerminationSignal


def as_signal(error: BaseException) -> TerminationSignal:
    """One of `interrupts` as the result of a state. Prefect would raise a KeyboardInterrupt in the thread of its event
    loop and so end that thread."""
    from prefect.exceptions import TerminationSignal

    if isinstance(error, TerminationSignal):
        return error
    return TerminationSignal(signal.Signals.__members__.get(str(error), signal.SIGINT))


def in_state(run: Callable[..., Any]) -> Callable[..., Any]:
    """A task's function that returns a final state for a user's error or a signal, instead of raising it. Prefect would
    show a traceback, and takes every signal for a crash. The state's result raises the error itself."""

    @functools.wraps(run)
    def ending(*arguments: Any, **named: Any) -> Any:
        from prefect.states import Cancelled, Failed

        try:
            return run(*arguments, **named)
        except GristmillError as error:
            return Failed(message=error.on_page, data=error)
        except interrupts() as error:
            return Cancelled(message=STOPPED, data=as_signal(error))

    return ending


def publish_page(name: str, session: Session) -> str:
    """Show a step's page in the Prefect UI, on the page of the running task. Returns the id of Prefect's artifact."""
    from prefect.artifacts import create_markdown_artifact

    key = prefect_key(f"stage-{name}")
    made = create_markdown_artifact(markdown=report(name, session), key=key, description=name)
    assert isinstance(made, UUID)
    return str(made)


def prefect_key(name: str) -> str:
    """A name as the key of a Prefect artifact: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def report(name: str, session: Session) -> str:
    """A step's page: whether and why it was made, its numbers, its inputs and readers, its tables and plots. The
    readers are known at the end of the run, when the page is written again."""
    step = session.steps[name]
    manifest = step.artifact.manifest
    assert manifest is not None
    together = [artifact for artifact in (step.artifact, *step.others) if artifact.manifest]
    lines = [f"## {name}: {how(step)}", *([f"Why it was made: {escaped(step.why)}."] if step.why else [])]
    lines += [f"`{step.artifact.location}` · [this page in all runs](/artifacts/key/{prefect_key(f'stage-{name}')})"]
    if step.others:
        rows = [{"artifact": f"`{one.location}`", **measured(one.manifest)} for one in together if one.manifest]
        return "\n\n".join([*lines, readable_table(rows), *_lineage(step, session)])
    lines += [readable_table([{"in this run": time_of(step), **measured(manifest)}]), *_lineage(step, session)]
    for title, table in {**manifest.counts.get("tables", {}), **manifest.facts.get("tables", {})}.items():
        lines += [f"### {title}", readable_table(table)]
    return "\n\n".join([*lines, *embed_plots(step.artifact)])


def how(step: Step) -> str:
    """Where a run got a step's artifact: from the store, or made."""
    manifest = step.artifact.manifest
    if step.cached:
        return f"from the store, {manifest.adopted}" if manifest and manifest.adopted else "from the store"
    waited = f" after waiting {duration(step.waited)}" if step.waited >= 1 else ""
    return f"made in {duration(step.worked)}{waited}"


def time_of(step: Step) -> str:
    """The time that a step took of the run, as a cell."""
    waiting = f" ({duration(step.waited)} waiting)" if step.waited >= 1 else ""
    return f"{duration(step.seconds)}{waiting}"


def making_of(manifest: Manifest) -> str:
    """How long it took to make an artifact, whichever run made it: all attempts, if it was killed and resumed."""
    if "seconds" not in manifest.facts:
        return ""
    attempts = manifest.facts.get("attempts")
    return duration(manifest.facts["seconds"]) + (f" in {attempts} attempts" if attempts else "")


def measured(manifest: Manifest) -> dict[str, str]:
    """The time, memory and size of an artifact, whichever run made it."""
    facts = manifest.facts
    known = {
        "making took": making_of(manifest),
        "CPU": duration(facts["cpu_seconds"]) if "cpu_seconds" in facts else "",
        "peak memory": size_of(facts["peak_memory_bytes"]) if "peak_memory_bytes" in facts else "",
        "text": size_of(facts["text_bytes"]) if "text_bytes" in facts else "",
        "size": size_of(manifest.size),
        "made at": manifest.created[:16].replace("T", " ") + " UTC",
    }
    return {name: value for name, value in known.items() if value}


def _lineage(step: Step, session: Session) -> list[str]:
    """Lines of links: the artifacts' inputs, the parts that they used, and the stages of this run that read them."""
    manifests = [one.manifest for one in (step.artifact, *step.others) if one.manifest]
    inputs = {(name, ref.location): ref for one in manifests for name, ref in one.origins.items()}
    uses = {(name, ref.location): ref for one in manifests for name, ref in one.uses.items()}
    locations = {one.location for one in (step.artifact, *step.others)}
    readers = [name for name, other in session.steps.items() if locations & set(sources_of(other))]
    found = {
        "Made of": [input_of(ref, session) for ref in inputs.values()],
        "With": [input_of(ref, session) for ref in uses.values()],
        "Read by": [linked(name, session) for name in readers],
    }
    return [f"**{title}:** {', '.join(links)}" for title, links in found.items() if links]


def sources_of(step: Step) -> Iterable[str]:
    """The locations of the inputs of a step's artifacts."""
    for artifact in (step.artifact, *step.others):
        if artifact.manifest:
            yield from (ref.location for ref in artifact.manifest.origins.values())
            yield from (ref.location for ref in artifact.manifest.uses.values())


def input_of(ref: InputRef, session: Session) -> Markup:
    """An input as a link to its page, with the beginning of its key and the part that was read."""
    stage, _, key = ref.location.partition("/")
    if ref.location.startswith("/"):
        return Markup(f"`{ref.location}`")
    same = (
        known
        for known, step in session.steps.items()
        if ref.location in {one.location for one in (step.artifact, *step.others)}
    )
    page = linked(next(same, stage), session)
    part = f"/{ref.part}" if ref.part else ""
    return Markup(f"{page} `{key[:KEY_SHOWN]}{part}`")


def linked(name: str, session: Session) -> Markup:
    """A stage's name, as a link to the page that this run wrote, or else to those of all runs."""
    if name in session.pages:
        return Markup(f"[{name}](/artifacts/artifact/{session.pages[name]})")
    return Markup(f"[{name}](/artifacts/key/{prefect_key(f'stage-{name}')})")


def embed_plots(artifact: Artifact, pattern: str = "*.png") -> list[str]:
    """The artifact's plots as Markdown images that need no file. Of an artifact in a bucket, only those that are on
    this machine: a page isn't worth fetching one."""
    names = artifact.names(pattern)
    return [embed_plot(artifact.file(name)) for name in names if (artifact.folder / name).is_file()]


# Control characters would make a file binary, so show Unicode's pictures of them
SHOWN = {chr(code): chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"}


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as a Markdown table."""
    if not rows:
        return "(empty)"
    heads = list(rows[0])
    return _table(heads, [[str(row.get(head, "")) for head in heads] for row in rows], ["---"] * len(heads))


def readable_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As `markdown_table`, for a page: numbers to the right, columns of long text last and their cells cut, so that the
    other columns stay in sight."""
    if not rows:
        return "(empty)"
    heads = dict.fromkeys(head for row in rows for head in row)
    columns = {head: [_cell(row.get(head, "")) for row in rows] for head in heads}
    widest = {head: max(len(LINK.sub(r"\1", cell)) for cell in cells) for head, cells in columns.items()}
    first = next(iter(columns))  # names the rows, so it stays first unless it is long itself
    order = sorted(columns, key=lambda head: widest[head] >= (CUT if head == first else LONG))
    rules = ["--:" if all(map(_is_number, columns[head])) else "---" for head in order]
    return _table(order, list(zip(*(columns[head] for head in order), strict=True)), rules)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], rules: Sequence[str]) -> str:
    shown = str.maketrans({"|": "·", **SHOWN})
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(rules)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(cell.translate(shown) for cell in row)} |" for row in rows)])


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, Markup):
        return value
    text = " ".join(str(value).split())
    if text.startswith("`") and text.endswith("`") and len(text) > CUT:
        return f"{text[: CUT - 2]}…`"
    text = text if len(text) <= CUT else f"{text[: CUT - 1]}…"
    return text if text.startswith("`") else escaped(text)


def escaped(text: str) -> str:
    """A text in which Markdown sees no tags, emphasis or tables."""
    return re.sub(r"([*_\[\]`\\])", r"\\\1", text).replace("<", "&lt;")


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"[-+~]?[\d,.]+(?:e[-+]?\d+)?(?: ?(?:%|s|min|h|[kMGTP]?B))?(?: \d+ s| \d+ min)?|", cell))


def embed_plot(plot: Path) -> str:
    """A PNG file as a Markdown image that needs no file."""
    data = plot.read_bytes()
    if len(data) > MAX_PLOT_BYTES:
        return f"({plot.name} is too large to show here)"
    return f"![{plot.stem}](data:image/png;base64,{base64.b64encode(data).decode()})"
