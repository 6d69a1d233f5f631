"""`gristmill release`: a release as a folder to hand on, its signature, and the check by whoever was handed it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from flows.commands.store import Name, StoreUrl, open_store
from flows.options import DEFAULT_STORE

app = typer.Typer(help="Hand a release on, signed, and check one.", no_args_is_help=True)
console = Console(soft_wrap=True, highlight=False)

Folder = Annotated[Path, typer.Argument(help="the folder of a saved release")]


@app.command()
def save(
    name: Name,
    folder: Annotated[Path, typer.Argument(help="where to; a folder that is not there yet")],
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Copy a release out of the store: its files and SHA256SUMS, which lists them."""
    from tasks.export.release import find_release
    from tasks.export.saved import save as save_release

    artifact = find_release(open_store(store), name)
    save_release(artifact, folder)
    console.print(f"{escape(str(folder))} holds {artifact.location}. Digest: {artifact.digest}")


@app.command()
def sign(
    folder: Folder,
    key: Annotated[Path, typer.Option(help="an SSH key; its public half for one that ssh-agent holds")],
) -> None:
    """Sign a saved release with an SSH key: SHA256SUMS.sig, beside SHA256SUMS. A damaged one is not signed."""
    from tasks.export.saved import SIGNATURE, sign_folder

    sign_folder(folder, key)
    console.print(f"Signed: {escape(str(folder / SIGNATURE))}")


@app.command()
def verify(
    folder: Folder,
    signers: Annotated[Path, typer.Option(help="the keys that you trust: ALLOWED SIGNERS in ssh-keygen(1)")],
    identity: Annotated[str | None, typer.Option(help="who must have signed; by default anyone in the file")] = None,
) -> None:
    """Check a release that somebody handed on: the signature, then every file. Needs no store and no network.

    Ends with 1 for any file that is missing, changed or too many.
    """
    from tasks.export.saved import verify_folder

    who, digest = verify_folder(folder, signers, identity)
    console.print(f"Signed by {escape(who)}, and every file is as signed. Digest: {digest}")
