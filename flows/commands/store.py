"""`gristmill store`: what is in a store, where it comes from, whether it is sound, and what may go."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from flows.commands.artifacts.listing import Wanted, list_refs
from flows.commands.artifacts.shown import show_manifest
from flows.options import DEFAULT_STORE, Overrides, ProfileName, settings
from flows.options import StoreUrl as RunStore
from flows.tables import Terminal, new_table
from storage import inspect, maintain, refs
from storage.damage import UNPUBLISHED
from storage.errors import ConfigError, DamagedArtifact
from storage.leases import Lease
from storage.store import Store
from storage.units import size_of

app = typer.Typer(no_args_is_help=True)
FEW = 5  # sources of an artifact that are named one by one
WIDE = 200  # columns: what is piped to another program is not wrapped
console = Terminal(width=None if sys.stdout.isatty() else WIDE)

StoreUrl = Annotated[str, typer.Option("--store", help="a folder or an fsspec URL")]
Name = Annotated[str, typer.Argument(metavar="REF", help="a ref (tiny/pretrain, tiny/pretrain@2) or stage/key")]


def open_store(url: str) -> Store:
    """A store that is there. Raises StoreError."""
    store = Store(url)
    store.check_exists()
    return store


@app.command()
def ls(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="only refs that match: 'tiny/*', '*/pretrain', pre")
    ] = "*",
    profile: Annotated[str | None, typer.Option(help="only refs of this profile")] = None,
    stage: Annotated[str | None, typer.Option(help="only refs of this stage, or part of one")] = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="every version of each ref, not the newest alone")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="the newest so many")] = 50,
    show_all: Annotated[bool, typer.Option("--all", help="however many there are")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """List the refs, newest version of each, the last made first.

    gristmill store ls 'tiny/*'

    gristmill store ls --stage pretrain --versions --limit 10
    """
    list_refs(
        console, open_store(store), Wanted(pattern, profile, stage, versions), None if show_all else limit, as_json
    )


@app.command()
def show(
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="print the whole manifest")] = False,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Say what an artifact is: made when, by what, of what, with which choices; its counts and files.

    gristmill store show tiny/pretrain

    gristmill store show tiny/pretrain@1 --json | jq .environment
    """
    opened = open_store(store)
    location = refs.resolve(opened, name)
    manifest = opened.get(location).manifest
    assert manifest is not None
    if as_json:
        print(manifest.to_json(), end="")
    else:
        show_manifest(console, location, manifest)


@app.command()
def lineage(
    name: Name,
    sources: Annotated[bool, typer.Option("--sources", help="every source outside the store, with its digest")] = False,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Draw the tree from an artifact to its sources."""
    opened = open_store(store)
    for node in inspect.lineage(opened, refs.resolve(opened, name)):
        stage, _, key = node.location.partition("/")
        made = f"v{node.manifest.payload.version} {node.manifest.created}" if node.manifest else "gone"
        label = f"{node.name} = " if node.name and node.name != stage else ""
        part = f" ({node.part}/)" if node.part else ""
        console.print(
            f"{'    ' * node.depth}{label}[bold]{stage}[/]/{key[:12]}{part} "
            f"[dim]{'seen above' if node.repeated else made}[/]"
        )
        if node.manifest and not node.repeated:
            for line in _sources(node.manifest.payload.inputs, sources):
                console.print(f"{'    ' * (node.depth + 1)}[dim]{escape(line)}[/]", soft_wrap=True)


def _sources(inputs: Mapping[str, str], every: bool) -> list[str]:
    """What an artifact took from outside the store: each with its digest, or of many the first names."""
    named = {name: digest for name, digest in inputs.items() if name.startswith("source:")}
    if every or len(named) <= FEW:
        return [f"{name} {digest[:40]}" for name, digest in named.items()]
    first = ", ".join(name.removeprefix("source:") for name in list(named)[:FEW])
    return [f"{len(named)} sources: {first}, … (--sources names all)"]


@app.command()
def diff(first: Name, second: Name, store: StoreUrl = DEFAULT_STORE) -> None:
    """Compare two artifacts: config, inputs, counts, scores."""
    opened = open_store(store)
    found = inspect.compare(opened, refs.resolve(opened, first), refs.resolve(opened, second))
    table = new_table("field", first, second)
    for path, one, two in found:
        table.add_row(path, _cell(one), _cell(two))
    console.print(table if found else "No difference in config, inputs or counts.")


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(metavar="REF", help="one artifact; all without it")] = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Hash every file again and name what is damaged."""
    opened = open_store(store)
    locations = [refs.resolve(opened, name)] if name else list(opened.locations())
    wrong = {} if name else inspect.verify_refs(opened)
    damaged: dict[str, list[str]] = {}
    for number, location in enumerate(locations, 1):
        found = inspect.verify(opened, location)
        state = "sound"
        if found and opened.twin(location) != location:
            state = "[yellow]damaged, made again since[/]: gc removes it"
        elif found:
            state = "[red]damaged[/]"
            damaged[location] = found
        stage, key = location.split("/")
        console.print(f"{number}/{len(locations)} {stage}/{key[:12]} {state}", highlight=False)
    problems = [*wrong.values(), *chain.from_iterable(damaged.values())]
    if problems:
        raise DamagedArtifact("; ".join(dict.fromkeys(problems)) + ".", _remedy(opened, damaged, [*wrong]))


def _remedy(store: Store, damaged: Mapping[str, list[str]], wrong: Sequence[str]) -> str:
    """What to do about damaged artifacts, by their phrases, and about refs that are `wrong`: delete what no stage wrote
    and refs that can't be read, have profiles make what their refs need, and have a collection delete the rest."""
    spoilt = {place: found for place, found in damaged.items() if not all(one.endswith(UNPUBLISHED) for one in found)}
    delete = [
        store.address(f"artifacts/{one.removesuffix(UNPUBLISHED)}")
        for place in damaged.keys() - spoilt.keys()
        for one in damaged[place]
    ]
    refresh: dict[str, set[str]] = {}
    open_ = set(spoilt)
    for name in refs.names(store):
        profile, _, stage = name.rpartition("/")
        try:
            newest = refs.history(store, name)[-1].location
        except DamagedArtifact:
            delete.append(store.address(f"refs/{name}.json"))
            mine = {place for place in open_ if place.partition("/")[0] == stage}  # it may have named that one
        else:
            mine = maintain.lineage_of(store, newest) & open_
            if name in wrong:
                refresh.setdefault(profile, set()).add(stage)
        open_ -= mine  # of several profiles that need one artifact, one makes it again
        for place in mine:
            refresh.setdefault(profile, set()).add(place.partition("/")[0])
    first = f"Delete {', '.join(map(shlex.quote, sorted(delete)))}. " if delete else ""
    if refresh:
        runs = "; ".join(_run(store, profile, stages) for profile, stages in sorted(refresh.items()))
        first += (
            f"Make them again: {runs}. Name a profile of your own by its file, and repeat the --set that they were "
            "made with: with others the run makes other artifacts. "
        )
    if spoilt:
        gc = f"gristmill store gc --delete --store {shlex.quote(store.url)}"
        return f"{first}`{gc}` removes what is damaged then; without --delete it shows what would go."
    return f"{first}{refs.GC_LATER}" if refresh or any("/refs/" in path for path in delete) else first.rstrip()


def _run(store: Store, profile: str, stages: Collection[str]) -> str:
    asked = " ".join(f"--refresh {stage}" for stage in sorted(stages))
    return f"gristmill run {shlex.quote(profile)} --store {shlex.quote(store.url)} {asked}"


def _number(garbage: maintain.Garbage) -> int:
    """Of what a run can come to use before it is deleted."""
    return len(garbage.artifacts) + len(garbage.workspaces) + len(garbage.checkpoints)


def _folder(store: Store, path: Path) -> str:
    """A folder that a collection would delete, and what it is."""
    if path.parent.name == "work":
        return f"{path.name} [dim](unfinished work: a resume would need it)[/]"
    return f"{path.relative_to(store.local)} [dim](curves and traces of a run whose artifact is gone or goes too)[/]"


@app.command()
def gc(
    delete: Annotated[bool, typer.Option("--delete", help="delete; without it nothing is touched")] = False,
    keep_last: Annotated[int, typer.Option(min=1, help="versions of every ref to keep, with their ancestors")] = 1,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Show (and with --delete remove) what no kept ref needs."""
    opened = open_store(store)
    garbage = maintain.find_garbage(opened, keep_last)
    for location, size in garbage.artifacts.items():
        console.print(f"{size_of(size):>9}  {location}")
    for path, size in garbage.workspaces.items():
        console.print(f"{size_of(size):>9}  {_folder(opened, path)}", highlight=False)
    for path, size in garbage.drafts.items():
        console.print(f"{size_of(size):>9}  {path.relative_to(opened.local)} [dim](a draft)[/]")
    for key, size in garbage.checkpoints.items():
        console.print(f"{size_of(size):>9}  {key} [dim](checkpoints in the bucket: a resume would need them)[/]")
    for upload in garbage.uploads:
        console.print(f"{size_of(upload.size):>9}  {upload.path} [dim](an upload that was never finished)[/]")
    if garbage.records:
        records = sum(garbage.records.values())
        console.print(f"{size_of(records):>9}  {len(garbage.records)} records of the oldest runs")
    if garbage.unreadable:
        console.print(
            f"{', '.join(garbage.unreadable)} can't be read, so all that may be needed for it stays. "
            "`gristmill store verify` tells the remedy."
        )
    if not delete:
        console.print(f"Would delete {size_of(garbage.size)}. Add --delete to do it.")
        return
    gone = maintain.collect(opened, garbage)
    stay = _number(garbage) - _number(gone)
    console.print(f"Deleted {size_of(gone.size)}." + (f" {stay} of these are in use by now, and stay." if stay else ""))


@app.command()
def adopt(
    stage: Annotated[str, typer.Argument(help="the stage whose artifact it stands for, such as tokenizer")],
    folder: Annotated[Path, typer.Argument(help="the folder that holds the artifact's files")],
    profile: ProfileName = "tiny",
    overrides: Overrides = None,
    store: RunStore = None,
) -> None:
    """Take a folder made elsewhere as a stage's artifact, so that the next run finds it instead of making it. The
    stage checks it first: export and evaluate, which can't, take none."""
    from flows.plan import plan
    from flows.session import session_of
    from profiles.load import load
    from tasks.stage.decorator import STAGES

    chosen = load(profile, settings(overrides, store))
    session = session_of(chosen, stage)
    opened = session.store
    STAGES[stage].adoption_check()  # before a run is asked for, which may take days
    given = maintain.adoptable(opened, folder)
    lines = plan(chosen, session)
    line = lines[-1]
    if line.payload is None:
        last = [line.name for line in lines[:-1] if line.name in chosen.stage_names][-1]
        before = f"gristmill run {profile} --store {opened.url} --to {last}"
        raise ConfigError(
            f"{stage} {line.why}, so its key is not known yet.",
            f"Run what comes before it first: {before}, with the same --set.",
        )
    STAGES[stage].check_adopted(getattr(chosen, stage), given, line.inputs)
    origins = STAGES[stage].origins(line.inputs)
    with Lease(opened) as lease:
        lease.add(f"{stage}/{line.payload.key()}")
        artifact = maintain.adopt(opened, folder, line.payload, origins, f"adopted from {folder.name}")
        number = refs.move(opened, f"{chosen.name}/{stage}", artifact.location, artifact.digest)
    console.print(f"{chosen.name}/{stage}@{number} is now {artifact.location[: len(stage) + 13]} (adopted).")


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= 60 else f"{text[:57]}…")
