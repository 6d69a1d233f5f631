"""`gristmill profile` lists profiles, prints one in full, and their schema for editors or as a page. `gristmill new`
copies a recipe."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import typer
import yaml
from rich.console import Console

from flows.options import Overrides, ProfileName
from flows.tables import Terminal, new_table
from storage.errors import ConfigError

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
    """List the profiles that come with Gristmill. `gristmill new` lists the recipes."""
    from profiles.load import names, purpose

    for name in names():
        Terminal().print(f"{name:<10} {purpose(name)}")


@app.command()
def show(name: ProfileName, overrides: Overrides = None) -> None:
    """Print a profile with all defaults."""
    from profiles.load import load

    print(yaml.safe_dump(load(name, overrides or []).model_dump(mode="json"), sort_keys=False))


def list_recipes(console: Console) -> None:
    """The recipes with their purposes, and how to copy one."""
    from profiles.load import purpose, recipes

    table = new_table("recipe", "for")
    for name in recipes():
        table.add_row(name, purpose(name))
    console.print(table)
    console.print("\nRun one by its name, or copy it: gristmill new my.yaml --from recipes/own-text", soft_wrap=True)


def write_new(console: Console, path: Path, template: str) -> None:
    """Write a profile of the user's own: a recipe with its comments, or one line that extends another profile. Raises
    ConfigError for a file that exists, a name that a profile can't have, and a template that does not exist."""
    from profiles.load import RECIPES, names, recipes, text_of
    from profiles.sections import NAME

    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path} is not the name of a profile.", "A profile is a file whose name ends in .yaml.")
    if not re.fullmatch(NAME, path.stem) or path.stem in names():
        why = "is the name of a profile of Gristmill's" if path.stem in names() else "can't be the name of a profile"
        raise ConfigError(f"{path.stem} {why}.", "Name the file otherwise, with lower-case letters, digits, - and _.")
    name = next((one for one in recipes() if one.removeprefix(RECIPES) == template), template)
    text = text_of(name)
    shown = shlex.quote(str(path))
    if copied := name in recipes():
        text = re.sub(rf"(?<=gristmill run ){name}\b", lambda _: shown, text)
    else:
        text = f"# `gristmill profile show {name}` prints every key that this inherits.\nextends: {name}\n"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already.", "Give another name: nothing is overwritten.") from error
    except FileNotFoundError as error:
        raise ConfigError(f"The folder {path.parent} does not exist.", "Make it, or name another.") from error
    how = "is a copy of" if copied else "extends"
    console.print(f"{path} {how} {name}. Next: gristmill plan {shown}", soft_wrap=True, highlight=False)
