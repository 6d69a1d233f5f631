"""`gristmill store`: lists, traces, compares, verifies, adopts and deletes artifacts."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from flows.commands.artifacts.listing import Wanted, list_refs
from flows.commands.artifacts.showing import show_manifest
from flows.options import DEFAULT_STORE, Overrides, ProfileName, settings
from flows.options import StoreUrl as RunStore
from flows.tables import Terminal, new_table
from storage import inspect, maintain, refs
from storage.damage import UNPUBLISHED
from storage.errors import OF_MANY, ConfigError, DamagedArtifact
from storage.leases import Lease
from storage.store import Store
from storage.units import size_of

app = typer.Typer(no_args_is_help=True)
FEW = 5  # up to this many sources of an artifact are named one by one
console = Terminal(wide=True)

StoreUrl = Annotated[str, typer.Option("--store", help="a folder or an fsspec URL")]
Name = Annotated[str, typer.Argument(metavar="REF", help="a ref (tiny/pretrain, tiny/pretrain@2) or stage/key")]


def open_store(url: str) -> Store:
    """An existing store. Raises StoreError."""
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
        bool, typer.Option("--versions", help="list every version of each ref, not only the newest")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="list at most this many, the newest first")] = 50,
    show_all: Annotated[bool, typer.Option("--all", help="list all, without a limit")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """List the newest version of each ref, the latest first.

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
    """Show an artifact: when and by what it was made, its inputs, settings, counts and files.

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
    sources: Annotated[
        bool, typer.Option("--sources", help="show every source outside the store, with its digest")
    ] = False,
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
    """The sources of an artifact outside the store, each with its digest, or the first names of many."""
    named = {name: digest for name, digest in inputs.items() if name.startswith("source:")}
    if every or len(named) <= FEW:
        return [f"{name} {digest[:40]}" for name, digest in named.items()]
    first = ", ".join(name.removeprefix("source:") for name in list(named)[:FEW])
    return [f"{len(named)} sources: {first}, … (--sources names all)"]


@app.command()
def diff(first: Name, second: Name, store: StoreUrl = DEFAULT_STORE) -> None:
    """Compare the config, inputs, counts and scores of two artifacts."""
    opened = open_store(store)
    fields = inspect.compare(opened, refs.resolve(opened, first), refs.resolve(opened, second))
    table = new_table("field", first, second)
    for path, one, two in fields:
        table.add_row(path, _cell(one), _cell(two))
    console.print(table if fields else "No difference in config, inputs or counts.")


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(metavar="REF", help="one artifact, by default all")] = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Hash every file again and report damage."""
    opened = open_store(store)
    locations = [refs.resolve(opened, name)] if name else list(opened.locations())
    if not locations:
        console.print(f"{store} has no artifacts.", highlight=False)
    wrong = {} if name else inspect.verify_refs(opened)
    damaged: dict[str, list[str]] = {}
    for number, location in enumerate(locations, 1):
        faults = inspect.verify(opened, location)
        state = "sound"
        if faults and opened.twin(location) != location:
            state = "[yellow]damaged, rebuilt since[/]: gc removes it"
        elif faults:
            state = "[red]damaged[/]"
            damaged[location] = faults
        stage, key = location.split("/")
        console.print(f"{number}/{len(locations)} {stage}/{key[:12]} {state}", highlight=False)
    problems = [*wrong.values(), *chain.from_iterable(damaged.values())]
    if problems:
        raise DamagedArtifact("; ".join(dict.fromkeys(problems)) + ".", _remedy(opened, damaged, [*wrong]))


def _remedy(store: Store, damaged: Mapping[str, list[str]], wrong: Sequence[str]) -> str:
    """The remedy for damaged artifacts, by their faults, and for refs that are `wrong`: delete what no stage wrote and
    unreadable refs, run matrices again and have profiles rebuild what their refs need, and have a collection delete the
    rest."""
    spoilt = {place: why for place, why in damaged.items() if not all(one.endswith(UNPUBLISHED) for one in why)}
    delete = [
        store.address(f"artifacts/{one.removesuffix(UNPUBLISHED)}")
        for place in damaged.keys() - spoilt.keys()
        for one in damaged[place]
    ]
    refresh: dict[str, set[str]] = {}
    commands: set[str] = set()
    matrices, open_ = _of_matrices(store), {*spoilt}
    for name in sorted(refs.names(store), key=lambda name: name in matrices):  # a matrix last: it needs the most
        profile, _, stage = name.rpartition("/")
        try:
            newest = refs.history(store, name)[-1].location
        except DamagedArtifact:
            delete.append(store.address(f"refs/{name}.json"))
            mine = {place for place in open_ if place.partition("/")[0] == stage}  # it may have named that one
        else:
            mine = maintain.lineage_of(store, newest) & open_
        open_ -= mine  # if several profiles need an artifact, one of them rebuilds it
        if name in matrices and (mine or name in wrong):
            commands.add(matrices[name])
            delete += [store.address(f"artifacts/{place}") for place in mine]
            spoilt = {place: why for place, why in spoilt.items() if place not in mine}
        elif mine or name in wrong:
            stages = {place.partition("/")[0] for place in mine}
            refresh.setdefault(profile, set()).update(stages | {stage} if name in wrong else stages)
    first = f"Delete {', '.join(map(shlex.quote, sorted(delete)))}. " if delete else ""
    if commands:
        first += f"Run the same {', '.join(sorted(commands))} again. "
    if refresh:
        runs = "; ".join(_run(store, profile, stages) for profile, stages in sorted(refresh.items()))
        first += (
            f"Rebuild them: {runs}. Name your own profile by its file, and repeat the --set options that they were "
            "made with: with others the run makes other artifacts. "
        )
    if spoilt:
        gc = f"gristmill store gc --delete --store {shlex.quote(store.url)}"
        return f"{first}Then `{gc}` removes the damaged ones. Without --delete it shows what it would remove."
    return f"{first}{refs.GC_LATER}" if refresh or any("/refs/" in path for path in delete) else first.rstrip()


def _of_matrices(store: Store) -> dict[str, str]:
    """The refs that a matrix of runs wrote, with its command: no profile's run makes what they name. A matrix has the
    sources of its profile, and names its runs after that."""
    names = [name.rpartition("/") for name in refs.names(store)]
    found: dict[str, list[str]] = defaultdict(list)
    for profile, _, stage in names:
        if stage in OF_MANY:
            found[profile].append(f"`gristmill {stage} {profile}`")
    own = {profile for profile, _, stage in names if stage in ("download", "base")}
    matrices = {}
    for profile, _, stage in names:
        owners = [] if profile in own else [one for one in found if profile.startswith(f"{one}-")]
        if stage in OF_MANY:
            matrices[f"{profile}/{stage}"] = f"`gristmill {stage} {profile}`"
        elif owners:
            matrices[f"{profile}/{stage}"] = " or ".join(found[max(owners, key=len)])
    return matrices


def _run(store: Store, profile: str, stages: Collection[str]) -> str:
    options = " ".join(f"--refresh {stage}" for stage in sorted(stages))
    return f"gristmill run {shlex.quote(profile)} --store {shlex.quote(store.url)} {options}"


def _number(garbage: maintain.Garbage) -> int:
    """The number of items that a run may start to use before they are deleted."""
    return len(garbage.artifacts) + len(garbage.workspaces) + len(garbage.checkpoints)


def _folder(store: Store, path: Path) -> str:
    """A folder that a collection would delete, with its kind."""
    if path.parent.name == "work":
        return f"{path.name} [dim](unfinished work: a resume would need it)[/]"
    if path.is_relative_to(store.local / "branches"):
        return f"{path.relative_to(store.local)} [dim](stable part of trainings: longer ones would begin from it)[/]"
    return f"{path.relative_to(store.local)} [dim](curves and traces of a run whose artifact is gone or goes too)[/]"


@app.command()
def gc(
    delete: Annotated[bool, typer.Option("--delete", help="delete instead of only showing")] = False,
    keep_last: Annotated[int, typer.Option(min=1, help="versions of each ref to keep, with their ancestors")] = 1,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Show, or with --delete remove, what no kept ref needs."""
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
            f"{', '.join(garbage.unreadable)} can't be read, so everything that it may need stays. "
            "`gristmill store verify` names the remedy."
        )
    if not delete:
        console.print(f"Would delete {size_of(garbage.size)}. Add --delete to delete it.")
        return
    gone = maintain.collect(opened, garbage)
    stay = _number(garbage) - _number(gone)
    console.print(f"Deleted {size_of(gone.size)}." + (f" {stay} of these are now in use, and stay." if stay else ""))


@app.command()
def adopt(
    stage: Annotated[str, typer.Argument(help="the stage whose artifact it becomes, such as tokenizer")],
    folder: Annotated[Path, typer.Argument(help="the folder with the artifact's files")],
    profile: ProfileName = "tiny",
    overrides: Overrides = None,
    store: RunStore = None,
) -> None:
    """Adopt a folder made elsewhere as a stage's artifact, so that the next run uses it instead of making one.

    The stage checks it first. Export and evaluate can't, so they adopt none.
    """
    from flows.plan import plan
    from flows.session import session_of
    from profiles.load import load
    from tasks.stage.decorator import STAGES

    chosen = load(profile, settings(overrides, store))
    session = session_of(chosen, stage)
    opened = session.store
    STAGES[stage].adoption_check()  # before the remedy below requests a run, which may take days
    names = maintain.adoptable(opened, folder)
    lines = plan(chosen, session)
    line = lines[-1]
    if line.payload is None:
        last = [line.name for line in lines[:-1] if line.name in chosen.stage_names][-1]
        before = f"gristmill run {profile} --store {opened.url} --to {last}"
        raise ConfigError(
            f"{stage} {line.why}, so its key is not known yet.",
            f"Run the stages before it first: {before}, with the same --set options.",
        )
    STAGES[stage].check_adopted(getattr(chosen, stage), names, line.inputs)
    origins = STAGES[stage].origins(line.inputs)
    with Lease(opened) as lease:
        lease.add(f"{stage}/{line.payload.key()}")
        artifact = maintain.adopt(opened, folder, line.payload, origins, f"adopted from {folder.name}")
        number = refs.move(opened, f"{chosen.name}/{stage}", artifact.location, artifact.digest)
    console.print(f"{chosen.name}/{stage}@{number} is now {artifact.location[: len(stage) + 13]} (adopted).")


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= 60 else f"{text[:57]}…")
