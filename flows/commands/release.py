"""`gristmill release`: saves a release as a folder, signs, verifies, publishes and registers it.

It publishes the saved folder, not an artifact: a signature can't be part of an artifact, and the manifest stays here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from flows.commands.store import Name, StoreUrl, open_store
from flows.deployed.model_registry import ENVIRONMENT
from flows.options import DEFAULT_STORE
from flows.tables import Terminal
from storage.errors import ConfigError, StoreError
from storage.units import size_of

if TYPE_CHECKING:
    from tasks.export.push.outgoing import Outgoing

app = typer.Typer(no_args_is_help=True)
console = Terminal(soft_wrap=True, highlight=False)

Folder = Annotated[Path, typer.Argument(help="the folder of a saved release")]


@app.command()
def save(
    name: Name, folder: Annotated[Path, typer.Argument(help="a new folder")], store: StoreUrl = DEFAULT_STORE
) -> None:
    """Copy a release out of the store: its files, a report on the run, and SHA256SUMS with their digests."""
    from flows.report.in_release import release_report
    from tasks.checks.extras import install
    from tasks.export.release import find_release
    from tasks.export.release_folder import REPORT_PAGE
    from tasks.export.release_folder import save as save_release

    opened = open_store(store)
    artifact = find_release(opened, name)
    report = release_report(opened, name)
    save_release(artifact, folder, report)
    console.print(f"{escape(str(folder))} holds {artifact.location}. Digest: {artifact.digest}")
    if REPORT_PAGE not in report:
        console.print(f"Without {REPORT_PAGE}, which needs: {escape(install('report'))}")


@app.command()
def sign(
    folder: Folder, key: Annotated[Path, typer.Option(help="an SSH key, or its public half if ssh-agent holds it")]
) -> None:
    """Sign a saved release with an SSH key, in SHA256SUMS.sig. Refuses a damaged release."""
    from tasks.export.release_folder import SIGNATURE, sign_folder

    sign_folder(folder, key)
    console.print(f"Signed: {escape(str(folder / SIGNATURE))}")


@app.command()
def verify(
    folder: Folder,
    signers: Annotated[
        Path | None, typer.Option(help="file of the keys that you trust: ALLOWED SIGNERS in ssh-keygen(1)")
    ] = None,
    identity: Annotated[str | None, typer.Option(help="the required signer, by default anyone in the file")] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="only check the files by their own list")] = False,
) -> None:
    """Verify a release that you received: the signature, then every file. Needs no store and no network.

    Exits with 1 for any missing, changed or extra file.
    """
    from tasks.export.release_folder import REPORT, REPORT_PAGE, added_by_hub, few, verify_folder, verify_unsigned

    if unsigned and not (signers or identity):
        digest = verify_unsigned(folder)
        console.print(
            "Every file is as SHA256SUMS lists it. That list is not signed: compare its digest with one from somebody "
            f"whom you trust. Digest: {digest}"
        )
        if reports := [name for name in (REPORT, REPORT_PAGE) if (folder / name).exists()]:
            console.print(f"That digest is of the artifact, so it doesn't cover {' and '.join(reports)}.")
        return
    if unsigned or signers is None:
        raise ConfigError(
            "Give either --signers or --unsigned.",
            "--signers is the file of the keys that you trust, --unsigned is for a release without a signature.",
        )
    who, digest = verify_folder(folder, signers, identity)
    console.print(f"Signed by {escape(who)}, and every file is as signed. Digest: {digest}")
    if added := added_by_hub(folder):
        console.print(f"Not signed: {escape(few(added))}, which a hub or its client added.")


@app.command()
def push(
    folder: Folder,
    url: Annotated[str, typer.Argument(help="hf://OWNER/NAME, the URL of a bucket or a server, or a folder")],
    public: Annotated[bool, typer.Option("--public", help="make the hub's repository public")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="don't ask, not even about findings in the files")] = False,
    allow_secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIGITS", help="the finding with these eight digits is neither a password nor a token (repeatable)"
        ),
    ] = None,
) -> None:
    """Publish a saved release to a hub, a bucket or a folder, after searching its files.

    Copies the signature too, and verifies what arrived. Refuses a place with other files, and a release with a password
    in it.
    """
    from tasks.export.push.address import HUB, address
    from tasks.export.push.hub import repository
    from tasks.export.push.outgoing import look, secrets_of
    from tasks.export.push.send import send
    from tasks.export.release_folder import few

    scheme, url = address(url)
    if scheme == HUB:
        repository(url)
    outgoing = look(folder)
    _show(outgoing)
    if secrets := secrets_of(outgoing, allow_secret or ()):
        named = few([f"{where} ({digest})" for digest, where in secrets.items()], "; ")
        options = " ".join(f"--allow-secret {digest}" for digest in secrets)
        raise StoreError(
            f"Found a password or a token in {named}.",
            f"Remove it and export again. If you looked and it isn't one: {options}",
        )
    readers = "everybody can" if public and scheme == HUB else "whoever has access there can"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("There is no terminal to ask whether to publish this.", "Give --yes to publish it.")
        typer.confirm(f"Copy {len(outgoing.digests)} files to {url}, where {readers} read them?", abort=True)
    try:
        send(outgoing, scheme, url, public)
    except KeyboardInterrupt:
        Terminal(stderr=True, soft_wrap=True, highlight=False).print(
            f"Interrupted: {escape(url)} may hold a part of the release. Push it again to go on."
        )
        raise typer.Exit(130) from None
    console.print(f"{escape(url)} holds the release. Every file was verified.")


@app.command()
def register(
    name: Name,
    registry: Annotated[
        str, typer.Option(help="the registry's address, by default MLFLOW_REGISTRY_URI or MLFLOW_TRACKING_URI")
    ] = ENVIRONMENT,
    place: Annotated[
        str | None, typer.Option(help="where the release was pushed to: a URL or a folder. By default its store")
    ] = None,
    model: Annotated[str | None, typer.Option(help="name of the registered model, by default the profile's")] = None,
    alias: Annotated[str, typer.Option(help="an alias of the version, besides `released`")] = "",
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Register a release in MLflow's model registry: where it is, its card, scores and tags. Uploads no file.

    The same release in the same place is one version. Registered again, it only gets its aliases back.
    """
    from flows.deployed.model_registry import Registry, place_in_store, place_of_copy
    from tasks.export.push.address import address
    from tasks.export.release import find_release, profile_of

    opened = open_store(store)
    profile = profile_of(opened, name)
    known = Registry(registry, model or profile, alias)
    known.check()
    artifact = find_release(opened, name)
    where = place_in_store(opened, artifact) if place is None else place_of_copy(address(place)[1])
    version = known.register(artifact, profile, where)
    named = " and ".join(known.aliases)
    console.print(
        f"{escape(known.shown)} has {escape(where)} as version {version} of {escape(known.model)}, as {named}."
    )


def _show(outgoing: Outgoing) -> None:
    """Print each file to publish, with warnings and findings."""
    for name, size in outgoing.sizes.items():
        console.print(f"{size_of(size):>9}  {escape(name)}")
    console.print(f"{size_of(sum(outgoing.sizes.values())):>9}  in all")
    for warning in outgoing.warnings:
        console.print(f"[yellow]Licences[/]: {escape(warning)}")
    for finding in outgoing.findings:
        console.print(f"[yellow]Found[/] in {escape(finding.where)}: {escape(finding.what)}")
