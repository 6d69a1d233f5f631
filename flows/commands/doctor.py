"""`gristmill doctor`: checks the installation, or whether a profile's pretraining would learn, fit and resume."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.estimates.arithmetic import pretraining_of
from flows.plan import plan
from flows.session import check_stages, session_of
from models.presets import count_parameters, derive
from profiles.load import load
from profiles.schema import Profile
from storage.units import duration
from tasks.checks.check import Check

MARKS = {"passed": "[green]✓[/]", "advice": "[yellow]![/]", "failed": "[bold red]✗[/]"}
NAME = 18  # characters of the longest check's name


def examine(console: Console, name: str | None, overrides: list[str]) -> bool:
    """Print each finished check, then the verdict. Returns whether none failed. Raises ConfigError."""
    lines = _installation(console, overrides) if name is None else _profile(console, load(name, overrides))
    return conclude(console, lines)


def conclude(console: Console, lines: list[dict[str, Any]]) -> bool:
    """Print the verdict. Returns whether no check failed."""
    failed = [line["name"] for line in lines if line["state"] == "failed"]
    advised = [line["name"] for line in lines if line["state"] == "advice"]
    console.print()
    if failed:
        console.print(f"[bold red]{len(failed)} of {len(lines)} checks failed:[/] {', '.join(failed)}.")
    else:
        advice = f", with advice on {', '.join(advised)}" if advised else ""
        console.print(f"[bold green]All {len(lines)} checks passed[/]{advice}.")
    return not failed


def show(console: Console, line: dict[str, Any]) -> None:
    """Print `✓ name  value  0.3 s`, and below it the remedy unless it passed."""
    table = Table(box=None, pad_edge=False, show_header=False, expand=True)
    table.add_column(width=1)
    table.add_column(width=NAME)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(justify="right")
    seconds = line.get("seconds", 0.0)
    text = escape(line["value"]) + (f"\n[yellow]→ {escape(line['remedy'])}[/]" if line["remedy"] else "")
    took = f"[dim]{duration(seconds)}[/]" if seconds >= 0.1 else ""
    table.add_row(MARKS[line["state"]], f"[bold]{line['name']}[/]", text, took)
    console.print(table)


def _installation(console: Console, overrides: list[str]) -> list[dict[str, Any]]:
    from tasks.checks.installation import checks
    from tasks.sandbox.levels import sandbox_check

    store = load("tiny", overrides).runtime.store
    console.print("[bold]The installation[/] [dim](to try a profile's pretraining: `gristmill doctor tiny`)[/]\n")

    def all_checks() -> Iterator[Check]:
        yield from checks(store)
        yield sandbox_check()

    lines = []
    with console.status("checking"):
        for line in (check.as_line() for check in all_checks()):
            show(console, line)
            lines.append(line)
    return lines


def _profile(console: Console, profile: Profile) -> list[dict[str, Any]]:
    from storage.files.disk import existing
    from tasks.pretrain.preflight.standalone import check_standalone
    from tasks.stage.output import Output

    config = pretraining_of(profile)
    check_stages(profile, ["pretrain"])
    tokens = token_shards(profile)
    shape = derive(config.new_model, profile.tokenizer.vocab_size)
    data = "on its token shards" if tokens else "on synthetic tokens, as the store has no token shards of this profile"
    console.print(
        f"[bold]{profile.name}[/] [dim]{count_parameters(shape):,} parameters, "
        f"{config.total_steps(shape):,} steps, {data}[/]\n"
    )
    disk = existing(session_of(profile).store.local)  # the run's disk, even if the store does not exist yet
    with tempfile.TemporaryDirectory(dir=disk, prefix=".doctor-") as folder, console.status("checking"):
        out = Output.at(Path(folder), stage="pretrain", runtime=profile.runtime)
        return check_standalone(
            config,
            out,
            tokens=tokens,
            vocab_size=profile.tokenizer.vocab_size,
            on_check=lambda line: show(console, line),
        )


def token_shards(profile: Profile) -> Path | None:
    """The token shards that a run of the profile would use, if the store has them."""
    line = next(line for line in plan(profile, session_of(profile, "tokenize")) if line.name == "tokenize")
    if not line.hit or line.payload is None:
        return None
    artifact = session_of(profile).store.find("tokenize", line.payload.key())
    return artifact.path if artifact else None
