"""`gristmill dependencies`: the installed packages, their versions and licences."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from flows.tables import new_table
from tasks.checks.dependencies import Dependency, as_json, dependencies

REQUIRING = 3  # packages named in a row


def show_dependencies(console: Console, json_wanted: bool) -> None:
    """Print every installed package that Gristmill requires."""
    packages = dependencies()
    if json_wanted:
        print(json.dumps([as_json(one) for one in packages], indent=1))
    else:
        _print(console, packages)


def _print(console: Console, packages: Sequence[Dependency]) -> None:
    table = new_table("package", "version", "licence", "required by")
    for one in packages:
        other = f" [yellow](tested: {one.tested})[/]" if one.tested not in ("", one.public_version) else ""
        more = f" and {len(one.required_by) - REQUIRING} more" if len(one.required_by) > REQUIRING else ""
        by = ", ".join(one.required_by[:REQUIRING]) + more
        table.add_row(one.name, f"{one.version}{other}", escape(one.licence), escape(by))
    console.print(table)
    untested = sum(one.tested not in ("", one.public_version) for one in packages)
    console.print(f"\n{len(packages)} packages, {untested} of another version than the tested one.")
