"""`gristmill profile`: the schema for editors and as a page, the list, and one profile in full."""

from __future__ import annotations

import json
from typing import Annotated

import typer
import yaml

from flows.tables import Terminal

app = typer.Typer(no_args_is_help=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a profile, for editors."""
    from profiles.schema import Profile

    print(json.dumps(Profile.model_json_schema(), indent=1))


@app.command()
def docs() -> None:
    """Print the reference of every key as Markdown: the page docs/profiles.md."""
    from profiles.reference import markdown

    print(markdown(), end="")


@app.command("list")
def list_profiles() -> None:
    """Name the profiles that come with Gristmill."""
    from profiles.load import load, names

    for name in names():
        Terminal().print(f"{name:<10} {load(name).description}")


@app.command()
def show(
    name: str,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="K=V", help="override a key")] = None,
) -> None:
    """Print a profile with every default filled in."""
    from profiles.load import load

    print(yaml.safe_dump(load(name, overrides or []).model_dump(mode="json"), sort_keys=False))
