"""`gristmill serve keys`: makes, lists and revokes the keys of a server. A running server obeys at once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape

from flows.tables import Terminal, new_table
from storage.errors import ConfigError
from storage.units import seconds_of

if TYPE_CHECKING:
    from tasks.serve.access.config import LimitsConfig
    from tasks.serve.access.keys import Key
    from tasks.serve.access.ledger import Ledger

app = typer.Typer(no_args_is_help=True)
console, errors = (Terminal(stderr=stderr, soft_wrap=True, highlight=False) for stderr in (False, True))

State = Annotated[
    Path | None,
    typer.Option("--state", metavar="FOLDER", help="the server's state folder, by default that of its file"),
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="the server's YAML file, for its limits and ledger")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
COLUMNS = ("id", "name", "state", "expires", "used", "tokens", "usd", "limits")
WORDS = {  # of limits, in the table
    "requests_per_minute": "{} requests/min",
    "tokens_per_minute": "{} tokens/min",
    "concurrent": "{} at a time",
    "budget_tokens": "{} tokens {period}",
    "budget_usd": "{} USD {period}",
    "models": "{}",
}
DEFAULT_STATE = Path("serve")


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="the holder's name, which no other active key has")],
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="a length of time such as 30d, or a date such as 2027-06-30 (its start, UTC)"
        ),
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=0, help="maximum requests in any 60 seconds")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=0, help="maximum tokens of prompts and answers in any 60 seconds")
    ] = None,
    concurrent: Annotated[int | None, typer.Option(min=0, help="maximum requests at a time")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=0, help="tokens of a budget period")] = None,
    budget_usd: Annotated[float | None, typer.Option(min=0, help="US dollars of a budget period")] = None,
    budget_period: Annotated[str | None, typer.Option(help="day, month (both in UTC) or total")] = None,
    model: Annotated[list[str] | None, typer.Option(metavar="NAME", help="allow only this model (repeatable)")] = None,
    as_json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Make a key, and print it: only now, as the server keeps only a digest.

    Its own limits replace the server's. 0 means no limit.
    """
    from tasks.serve.access.config import Limits
    from tasks.serve.access.keys import new_key
    from tasks.serve.access.open import open_ledger

    asked = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrent": concurrent,
        "budget_tokens": budget_tokens,
        "budget_usd": budget_usd,
        "budget_period": budget_period,
        "models": model,
    }
    now = time.time()
    try:
        own = Limits(**{limit: value or None for limit, value in asked.items() if value is not None})
    except ValidationError as error:
        raise _invalid("a limit", error) from error
    key, text = new_key(name, own, now, None if expires is None else _expiry(expires, now))
    limits, folder = _settings(config, state)
    open_ledger(limits, folder).add(key)
    if as_json:
        print(json.dumps({"id": key.id, "name": key.name, "key": text, "expires": _iso(key.expires)}, indent=1))
        return
    if budget_usd:
        errors.print("[dim]A budget in dollars needs prices: usd_per_hour, or those of each model, in the settings.[/]")
    console.print(f"Key {key.id} of {escape(key.name)}. Keep it now, as it can't be shown again:")
    print(text)


@app.command("list")
def list_keys(as_json: Json = False, config: Config = None, state: State = None) -> None:
    """List keys: when they expire and were used, what they spent of their budget period, and their own limits.

    --json also shows when they were made, and the period.
    """
    from tasks.serve.access.config import DOLLAR, Limits
    from tasks.serve.access.quota import SECOND, period

    (limits, folder), now = _settings(config, state), int(time.time() * SECOND)
    ledger = _existing(limits, folder)
    rows: list[dict[str, Any]] = []
    for key in ledger.all_keys():
        own = key.own_limits()
        kind = (own if "budget_period" in own.model_fields_set else limits).budget_period
        tokens, nano = ledger.spent(key.id, period(kind, now).label)
        rows.append(
            {
                "id": key.id,
                "name": key.name,
                "state": key.state(now),
                "created": _iso(key.created),
                "expires": _iso(key.expires),
                "used": _iso(key.used),
                "period": kind,
                "tokens": tokens,
                "usd": nano / DOLLAR,
                "limits": {name: getattr(own, name) for name in Limits.model_fields if name in own.model_fields_set},
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = new_table(*COLUMNS, right=("tokens", "usd"))
    for row in rows:
        days = {name: (row[name] or "")[:10] for name in ("expires", "used")}
        spent = {"tokens": f"{row['tokens']:,}", "usd": f"{row['usd']:,.4f}"}
        shown = row | days | spent | {"limits": "\n".join(_in_words(row["limits"], row["period"]))}
        table.add_row(*(escape(shown[column]) for column in COLUMNS))
    console.print(table)


@app.command()
def revoke(
    which: Annotated[str, typer.Argument(metavar="KEY", help="a key's id or name, or a leaked key itself")],
    config: Config = None,
    state: State = None,
) -> None:
    """Revoke a key for good. Every process refuses its next request."""
    from tasks.serve.access.keys import FORM
    from tasks.serve.access.quota import SECOND

    ledger = _existing(*_settings(config, state))
    leaked = FORM.fullmatch(which)
    wanted = leaked[1] if leaked else which
    found: list[Key] = [key for key in ledger.all_keys() if key.revoked is None and wanted in (key.id, key.name)]
    if len(found) != 1:
        many = "Several active keys have" if found else "No active key has"
        raise ConfigError(f"{many} the id or name {wanted}.", "`gristmill serve keys list` shows all. Give an id.")
    ledger.revoke(found[0].id, int(time.time() * SECOND))
    console.print(f"Revoked key {found[0].id} of {escape(found[0].name)}.")


def _in_words(limits: Mapping[str, Any], period: str) -> Iterator[str]:
    """A key's own limits, one a line."""
    for name, words in WORDS.items():
        if name in limits:
            limit = limits[name]
            kind = {int: "{:,}", float: "{:,.2f}", list: "{}", type(None): "any number of"}[type(limit)]
            yield words.format(
                kind.format(", ".join(limit) if isinstance(limit, list) else limit),
                period="in all" if period == "total" else f"a {period}",
            )


def _existing(limits: LimitsConfig, state: Path) -> Ledger:
    """The ledger of a server that has been used. Raises ConfigError for a folder without one."""
    from tasks.serve.access.open import open_ledger

    if limits.ledger is None and not (state / "serve.sqlite").exists():
        raise ConfigError(
            f"{state} holds no keys yet.", "Give --state FOLDER, or make one: `gristmill serve keys make NAME`."
        )
    return open_ledger(limits, state)


def _settings(config: Path | None, state: Path | None) -> tuple[LimitsConfig, Path]:
    """The limits and the state folder of a server. Raises ConfigError."""
    from profiles.load import read_settings
    from tasks.serve.access.config import LimitsConfig

    if config is None:
        return LimitsConfig(), state or DEFAULT_STATE
    from tasks.serve.config import ServeConfig

    settings = read_settings(ServeConfig, config)
    return settings.limits, state or settings.state


def _invalid(what: str, error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    return ConfigError(f"{what}.{'.'.join(map(str, first['loc']))}: {first['msg']}.", "Change it.")


def _expiry(text: str, now: float) -> float:
    """The end of a key as seconds since 1970. Raises ConfigError."""
    try:
        if re.fullmatch(r"[0-9.]+\s*[a-z]", text):
            end = now + seconds_of(text)
        else:
            moment = datetime.fromisoformat(text)
            end = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        datetime.fromtimestamp(end, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"--expires {text} is not a time.", "Give one such as 30d, 12h or 2027-06-30.") from error
    if end <= now:
        raise ConfigError(f"--expires {text} is in the past.", "Give a later date, or a length of time such as 30d.")
    return end


def _iso(moment: int | None) -> str | None:
    return None if moment is None else f"{datetime.fromtimestamp(moment // 1_000_000, UTC):%Y-%m-%d %H:%M}"
