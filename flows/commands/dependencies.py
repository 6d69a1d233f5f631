"""`gristmill dependencies`: what is installed, under which licence, and whether it has a known vulnerability."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from flows.tables import new_table
from tasks.checks.advisories import Advisory, advisories
from tasks.checks.dependencies import Dependency, as_json, dependencies

REQUIRING = 3  # packages that are named for each
Found = Mapping[str, list[Advisory] | None]


def show_dependencies(console: Console, index: str | None, json_wanted: bool) -> bool:
    """Print the packages, with the advisories of an index if one is given; returns whether there are none."""
    packages = dependencies()
    found = advisories(packages, index) if index else {}
    if json_wanted:
        print(json.dumps([_as_json(one, found) for one in packages], indent=1))
    else:
        _print(console, packages, found)
    return not any(found.values())


def _print(console: Console, packages: Sequence[Dependency], found: Found) -> None:
    table = new_table("package", "version", "licence", "required by")
    for one in packages:
        other = f" [yellow](tested: {one.tested})[/]" if one.tested not in ("", one.public_version) else ""
        more = f" and {len(one.required_by) - REQUIRING} more" if len(one.required_by) > REQUIRING else ""
        by = ", ".join(one.required_by[:REQUIRING]) + more
        table.add_row(one.name, f"{one.version}{other}", escape(one.licence), escape(by))
    console.print(table)
    untested = sum(one.tested not in ("", one.public_version) for one in packages)
    console.print(f"\n{len(packages)} packages, {untested} of another version than the tested one.")
    if not found:
        return
    for one in packages:
        for advisory in found[one.name] or []:
            names = ", ".join([advisory.id, *advisory.aliases])
            fixed = f"fixed in {', '.join(advisory.fixed_in)}" if advisory.fixed_in else "not fixed yet"
            console.print(f"[bold red]✗[/] {one.name} {one.version}: {escape(names)}, {escape(fixed)}")
    unknown = [f"{one.name} {one.version}" for one in packages if found[one.name] is None]
    if unknown:
        console.print(f"[yellow]![/] Not known to the index, so not checked: {', '.join(unknown)}.")
    count = sum(len(known or []) for known in found.values())
    console.print(f"{count or 'No'} known {'vulnerability' if count == 1 else 'vulnerabilities'}.")


def _as_json(one: Dependency, found: Found) -> Mapping[str, object]:
    if one.name not in found:
        return as_json(one)
    known = found[one.name]
    told = None if known is None else [advisory.model_dump(exclude={"withdrawn"}) for advisory in known]
    return {**as_json(one), "advisories": told}
