"""`gristmill store`: what is in a store, where it comes from, whether it is sound, and what may go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from flows.options import DEFAULT_STORE, Overrides, ProfileName, settings
from flows.options import StoreUrl as RunStore
from flows.tables import new_table
from storage import inspect, maintain, refs
from storage.errors import ConfigError, DamagedArtifact
from storage.leases import Lease
from storage.store import Store
from storage.units import duration, size_of

app = typer.Typer(no_args_is_help=True)
WIDE = 200  # columns: what is piped to another program is not wrapped
console = Console(width=None if sys.stdout.isatty() else WIDE)

StoreUrl = Annotated[str, typer.Option("--store", help="a folder or an fsspec URL")]
Name = Annotated[str, typer.Argument(metavar="REF", help="a ref (tiny/pretrain, tiny/pretrain@2) or stage/key")]


def open_store(url: str) -> Store:
    """A store that is there. Raises StoreError."""
    store = Store(url)
    store.check_exists()
    return store


@app.command()
def ls(store: StoreUrl = DEFAULT_STORE) -> None:
    """List the refs, newest version of each."""
    opened = open_store(store)
    table = new_table("ref", "artifact", "size", "made", "in", right=["size", "in"])
    for name in refs.names(opened):
        try:
            entries = refs.history(opened, name)
        except DamagedArtifact:
            table.add_row(name, "", "damaged", "", "")
            continue
        stage, key = entries[-1].location.split("/")
        try:
            manifest = opened.manifest(entries[-1].location)
        except DamagedArtifact:
            table.add_row(f"{name}@{len(entries)}", f"{stage}/{key[:12]}", "damaged", "", "")
            continue
        if manifest is None:
            table.add_row(f"{name}@{len(entries)}", f"{stage}/{key[:12]}", "gone", "", "")
            continue
        seconds = duration(float(manifest.facts.get("seconds", 0)))
        table.add_row(
            f"{name}@{len(entries)}", f"{stage}/{key[:12]}", size_of(manifest.size), manifest.created, seconds
        )
    console.print(table)


@app.command()
def show(name: Name, store: StoreUrl = DEFAULT_STORE) -> None:
    """Print an artifact's manifest."""
    opened = open_store(store)
    manifest = opened.get(refs.resolve(opened, name)).manifest
    assert manifest is not None
    print(manifest.to_json(), end="")


@app.command()
def lineage(name: Name, store: StoreUrl = DEFAULT_STORE) -> None:
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
            for source, digest in node.manifest.payload.inputs.items():
                if source.startswith("source:"):
                    console.print(f"{'    ' * (node.depth + 1)}[dim]{escape(source)} {escape(digest[:40])}[/]")


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
    problems = [] if name else inspect.verify_refs(opened)
    damaged = []
    for number, location in enumerate(locations, 1):
        found = inspect.verify(opened, location)
        state = "sound"
        if found and opened.twin(location) != location:
            state = "[yellow]damaged, made again since[/]: gc removes it"
        elif found:
            state = "[red]damaged[/]"
            problems += found
            damaged.append(location)
        stage, key = location.split("/")
        console.print(f"{number}/{len(locations)} {stage}/{key[:12]} {state}", highlight=False)
    if problems:
        raise DamagedArtifact("; ".join(dict.fromkeys(problems)) + ".", _remedy(opened, damaged))


def _remedy(store: Store, damaged: list[str]) -> str:
    """What to do: delete the refs that can't be read, then make damaged artifacts again by the profiles whose refs name
    them."""
    profiles: dict[str, set[str]] = {}
    unreadable, named = [], set[str]()
    for name in refs.names(store):
        profile, _, stage = name.rpartition("/")
        try:
            mine = {entry.location for entry in refs.history(store, name)} & set(damaged)
            if mine - named:  # of several profiles that made one artifact, one makes it again
                named |= mine
                profiles.setdefault(profile, set()).add(stage)
        except DamagedArtifact:
            unreadable.append(store.address(f"refs/{name}.json"))
            if stage in {location.partition("/")[0] for location in damaged}:  # it may have named that one
                profiles.setdefault(profile, set()).add(stage)
    first = f"Delete {', '.join(unreadable)}. " if unreadable else ""
    runs = [
        f"gristmill run {profile} --store {store.url} {' '.join(f'--refresh {stage}' for stage in sorted(stages))}"
        for profile, stages in profiles.items()
    ]
    if runs:
        return (
            f"{first}Make them again: {'; '.join(runs)}. Name a profile of your own by its file, and repeat the --set "
            "that they were made with: with others the run makes other artifacts."
        )
    if damaged:
        return f"{first}`gristmill store gc` removes what is damaged: no profile's run names it."
    return (
        f"{first}Run the profile again, which writes its refs anew. Leave `gristmill store gc` for afterwards: it "
        "removes what no ref names."
    )


def _number(garbage: maintain.Garbage) -> int:
    """Of what a run can come to use before it is deleted."""
    return len(garbage.artifacts) + len(garbage.workspaces) + len(garbage.checkpoints)


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
        console.print(f"{size_of(size):>9}  {path.name} [dim](unfinished work: a resume would need it)[/]")
    for path, size in garbage.drafts.items():
        console.print(f"{size_of(size):>9}  {path.relative_to(opened.local)} [dim](a draft)[/]")
    for key, size in garbage.checkpoints.items():
        console.print(f"{size_of(size):>9}  {key} [dim](checkpoints in the bucket: a resume would need them)[/]")
    for upload in garbage.uploads:
        console.print(f"{size_of(upload.size):>9}  {upload.path} [dim](an upload that was never finished)[/]")
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
    STAGES[stage].check_of_adopted()  # before a run is asked for, which may take days
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
