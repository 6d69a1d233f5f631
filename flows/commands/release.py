"""`gristmill release`: a release as a folder to hand on, its signature, the check by whoever was handed it, and the way
out to a hub or a bucket.

What goes out is the saved folder and no artifact: a signature can't lie in an artifact, and its manifest stays here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from flows.commands.store import Name, StoreUrl, open_store
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
    name: Name,
    folder: Annotated[Path, typer.Argument(help="where to; a folder that is not there yet")],
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Copy a release out of the store: its files and SHA256SUMS, which lists them."""
    from tasks.export.release import find_release
    from tasks.export.release_folder import save as save_release

    artifact = find_release(open_store(store), name)
    save_release(artifact, folder)
    console.print(f"{escape(str(folder))} holds {artifact.location}. Digest: {artifact.digest}")


@app.command()
def sign(
    folder: Folder, key: Annotated[Path, typer.Option(help="an SSH key; its public half for one that ssh-agent holds")]
) -> None:
    """Sign a saved release with an SSH key: SHA256SUMS.sig, beside SHA256SUMS. A damaged one is not signed."""
    from tasks.export.release_folder import SIGNATURE, sign_folder

    sign_folder(folder, key)
    console.print(f"Signed: {escape(str(folder / SIGNATURE))}")


@app.command()
def verify(
    folder: Folder,
    signers: Annotated[
        Path | None, typer.Option(help="the keys that you trust: ALLOWED SIGNERS in ssh-keygen(1)")
    ] = None,
    identity: Annotated[str | None, typer.Option(help="who must have signed; by default anyone in the file")] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="check the files alone, by their own list")] = False,
) -> None:
    """Check a release that somebody handed on: the signature, then every file. Needs no store and no network.

    Ends with 1 for any file that is missing, changed or too many.
    """
    from tasks.export.release_folder import added_by_hub, few, verify_folder, verify_unsigned

    if unsigned and not (signers or identity):
        digest = verify_unsigned(folder)
        console.print(
            "Every file is as SHA256SUMS lists it. Nobody vouches for that list: compare its digest with one from "
            f"whom you trust. Digest: {digest}"
        )
        return
    if unsigned or signers is None:
        raise ConfigError(
            "A release is checked by --signers, or --unsigned without them.",
            "Give the file of the keys that you trust, or say --unsigned for one that nobody signed.",
        )
    who, digest = verify_folder(folder, signers, identity)
    console.print(f"Signed by {escape(who)}, and every file of its list is as signed. Digest: {digest}")
    if added := added_by_hub(folder):
        console.print(f"Nobody signed {escape(few(added))}, which a hub or its client has added.")


@app.command()
def push(
    folder: Folder,
    url: Annotated[str, typer.Argument(help="hf://OWNER/NAME, the URL of a bucket or a server, or a folder")],
    public: Annotated[bool, typer.Option("--public", help="of the hub: for everybody to see")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="don't ask, not even about what was found in the files")] = False,
    allow_secret: Annotated[
        list[str] | None,
        typer.Option(metavar="DIGITS", help="what was found by these eight digits is no password and no token"),
    ] = None,
) -> None:
    """Copy a saved release to a hub, a bucket or a folder, after a look at what goes out.

    A signature goes along. What arrived is checked; a place with other files is refused, and so is a release with a
    password in it.
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
            f"There is a password or a token in {named}.",
            f"Take it out and export again. If you looked and it is none, say so: {options}",
        )
    seen = "everybody can" if public and scheme == HUB else "whoever has access there can"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("Nobody is there to be asked whether all this may go out.", "Say --yes, if it may.")
        typer.confirm(f"Copy {len(outgoing.digests)} files to {url}, where {seen} read them?", abort=True)
    try:
        send(outgoing, scheme, url, public)
    except KeyboardInterrupt:
        Terminal(stderr=True, soft_wrap=True, highlight=False).print(
            f"Interrupted: {escape(url)} may hold a part of the release; push it again: it goes on."
        )
        raise typer.Exit(130) from None
    console.print(f"{escape(url)} holds the release, and every file is as it is here.")


def _show(outgoing: Outgoing) -> None:
    """Each file that would go out, with what there is to know before it does."""
    for name, size in outgoing.sizes.items():
        console.print(f"{size_of(size):>9}  {escape(name)}")
    console.print(f"{size_of(sum(outgoing.sizes.values())):>9}  in all")
    for warning in outgoing.warnings:
        console.print(f"[yellow]Licences[/]: {escape(warning)}")
    for found in outgoing.findings:
        console.print(f"[yellow]Found[/] in {escape(found.where)}: {escape(found.what)}")
