"""`gristmill serve audit`: the lines of the audit log that were asked for, for people or as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.tables import Terminal
from storage.errors import ConfigError, SourceError
from storage.units import seconds_of

errors = Terminal(stderr=True)


def audit(
    state: Annotated[Path, typer.Option(metavar="FOLDER", help="the server's state folder")] = Path("serve"),
    key: Annotated[str, typer.Option(metavar="ID|NAME", help="only this key's requests")] = "",
    status: Annotated[str, typer.Option(metavar="CODE", help="only this status, such as 429 or 4xx")] = "",
    rule: Annotated[str, typer.Option(help="only requests in which this rule of the guards found something")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="such as 2h, 3d, 2026-11-26 or 2026-11-26T20:00Z")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="a time as in --since, itself excluded")] = "",
    model: Annotated[str, typer.Option(metavar="NAME", help="only requests to this model")] = "",
    request: Annotated[str, typer.Option("--id", metavar="ID", help="only this request")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print the lines as they are kept")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="print new lines until Ctrl-C, without --since only these")
    ] = False,
) -> None:
    """Show who asked the server for what, and what became of it.

    Each request is a line: its end in UTC, id, key, route, model, status, finish reason, tokens of prompt and answer,
    cost, milliseconds, and the guards' verdicts.
    """
    from tasks.serve.watch.audit import FOLDER
    from tasks.serve.watch.audit_reader import Wanted, records

    if not (state / FOLDER).is_dir():
        raise SourceError(f"{state} doesn't hold an audit log.", "Name the server's state folder with --state.")
    if not re.fullmatch(r"|[1-5](\d\d|[xX]{2})", status):
        raise ConfigError(f"--status {status} is not a status.", "Write it as 429 or 4xx.")
    now = datetime.now(UTC)
    first = moment(since, "--since", now) if since else moment("0s", "--since", now) if follow else ""
    wanted = Wanted(
        id_of(key, state), status, rule, model, request, first, moment(until, "--until", now) if until else ""
    )
    console, damaged, found = Terminal(soft_wrap=True, highlight=False), Counter[str](), False
    try:
        for record in records(state, wanted, follow=follow, damaged=lambda path: damaged.update([path.name])):
            found = True
            show(console, record, as_json)
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        if not found:
            errors.print("[dim]No request matches.[/]")
        for name, count in damaged.items():
            errors.print(f"[yellow]Skipped {count} damaged lines of {name}.[/]", highlight=False)


def id_of(key: str, state: Path) -> str:
    """The id of a key that is named by its id or its name."""
    from tasks.serve.access.config import LimitsConfig
    from tasks.serve.access.open import open_ledger

    if not key or not (state / "serve.sqlite").exists():
        return key
    ledger = open_ledger(LimitsConfig(), state)
    named = [one.id for one in ledger.all_keys() if one.name == key]
    ledger.close()
    return named[-1] if named else key


def moment(text: str, option: str, now: datetime) -> str:
    """A time as the log writes it, of a date, a time (UTC unless it says otherwise) or a length of time before now.

    Raises ConfigError for anything else.
    """
    from tasks.serve.watch.logs import stamp

    try:
        return stamp((now - timedelta(seconds=seconds_of(text))).timestamp())
    except (ValueError, OverflowError):
        pass
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text} is not a time.", "Write it as 2h, 3d, 2026-11-26 or 2026-11-26T20:00Z."
        ) from error
    return stamp((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp())


def show(console: Console, record: dict[str, Any], as_json: bool) -> None:
    """Print a line of the log."""
    if as_json:
        console.print(json.dumps(record, ensure_ascii=False), markup=False)
        return
    said = {name: record.get(name) for name in ("time", "id", "key", "route", "model", "status", "finish")}
    words = [str("-" if value in (None, "") else value) for value in said.values()]
    words.append(f"{record.get('prompt_tokens')}+{record.get('completion_tokens')} tokens")
    words += [f"${record.get('cost_usd') or 0:.6f}", f"{record.get('ms')} ms"]
    words += [f"{guard['direction']}:{guard['rule']}={guard['action']}" for guard in record.get("guards", ())]
    console.print("  ".join(words), markup=False)
