"""`gristmill profile`: lists profiles, prints one in full, and their schema for editors or as a page."""

from __future__ import annotations

import json

import typer
import yaml

from flows.options import Overrides, ProfileName
from flows.tables import Terminal

app = typer.Typer(no_args_is_help=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a profile, for editors."""
    from profiles.schema import Profile

    print(json.dumps(Profile.model_json_schema(), indent=1))


@app.command()
def docs() -> None:
    """Print the reference of all keys as Markdown: docs/profiles.md."""
    from profiles.reference import markdown

    print(markdown(), end="")


@app.command("list")
def list_profiles() -> None:
    """List the profiles that come with Gristmill."""
    from profiles.load import load, names

    for name in names():
        Terminal().print(f"{name:<10} {load(name).description}")


@app.command()
def show(name: ProfileName, overrides: Overrides = None) -> None:
    """Print a profile with all defaults."""
    from profiles.load import load

    print(yaml.safe_dump(load(name, overrides or []).model_dump(mode="json"), sort_keys=False))
