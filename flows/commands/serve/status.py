"""`gristmill serve status`: what a running server does, from its /status.json."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

import httpx
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from flows.tables import Terminal, new_table
from storage.errors import ConfigError, ServerError
from storage.units import duration

LOOK_SECONDS = 1.0


def status(
    url: Annotated[str, typer.Argument(help="the server's address")] = "http://127.0.0.1:8000",
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="environment variable with the key of one of `watchers`, by default none is sent"
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="show it again every second, until Ctrl-C")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show a server's releases, load, latency, costs and guard verdicts.

    Latencies and tokens/s cover the last minutes, everything else the time since the server started.
    """
    if watch and as_json:
        raise ConfigError("--watch can't be combined with --json.", "Leave one of them out.")
    console = Terminal(highlight=False)
    found = ask(url, api_key_env)
    if as_json:
        console.print(json.dumps(found, indent=2), markup=False, soft_wrap=True)
        return
    if not watch:
        console.print(page(found))
        return
    with suppress(KeyboardInterrupt), Live(page(found), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(LOOK_SECONDS)
            live.update(page(ask(url, api_key_env)), refresh=True)


def ask(url: str, api_key_env: str | None) -> dict[str, Any]:
    """The server's status. Raises ConfigError if it refuses the key, ServerError if it doesn't answer as ours does."""
    if api_key_env and api_key_env not in os.environ:
        raise ConfigError(
            f"The environment variable {api_key_env} is not set.", "Set it to the key of one of `watchers`."
        )
    headers = {"authorization": f"Bearer {os.environ[api_key_env]}"} if api_key_env else {}
    address = f"{url.rstrip('/')}/status.json"
    try:
        answer = httpx.get(address, headers=headers, timeout=10, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(
            f"No server answers at {url} ({type(error).__name__}).",
            "`gristmill serve` starts one and prints its address.",
        ) from error
    if answer.status_code in (401, 403):
        raise ConfigError(
            f"{address} needs the key of one of `watchers`.", "Name the variable that holds it with --api-key-env."
        )
    try:
        found = answer.raise_for_status().json()
    except (httpx.HTTPStatusError, ValueError) as error:
        raise ServerError(f"{address} is not a status of Gristmill.", "Check the address.") from error
    if not isinstance(found, dict) or "latency" not in found:
        raise ServerError(f"{address} is not a status of Gristmill.", "Check the address.")
    return found


def page(found: Mapping[str, Any]) -> RenderableType:
    """The status for a terminal."""
    return Group(*_parts(found))


def _parts(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    models = new_table(
        "model", "release", "ready", "running", "waiting", "restarts", right=("running", "waiting", "restarts")
    )
    for name, of in found["models"].items():
        release = of["release"].get("ref") or of["release"].get("digest", "")[:12]
        ready = Text("yes", "green") if of["ready"] else Text("no", "bold red")
        models.add_row(
            escape(name), escape(release), ready, *(str(of[one]) for one in ("running", "waiting", "restarts"))
        )
    yield models
    yield Text(f"\n{found['tokens_per_second']:,.1f} tokens/s, up for {duration(found['uptime_seconds'])}")
    counts = (f"{count:,} × {code}" for code, count in sorted(found["requests"].items()))
    yield Text(f"Requests: {', '.join(counts) or 'none'}\n")
    columns = ("p50", "p95", "p99", "count")
    latency = new_table(f"last {found['window_seconds'] // 60} min", *columns, right=columns)
    for name, label in (("first_token", "time to first token"), ("token", "time per token"), ("whole", "end to end")):
        one = found["latency"][name]
        latency.add_row(label, *(_milliseconds(one[column]) for column in columns[:3]), f"{one['count']:,}")
    yield latency
    if found["keys"]:
        keys = new_table("\nkey", "\nrequests", "\ntokens", "\nUSD", right=("\nrequests", "\ntokens", "\nUSD"))
        for one in found["keys"]:
            keys.add_row(
                escape(one.get("name") or one["key"]),
                f"{one['requests']:,}",
                f"{one['tokens']:,}",
                f"{one['cost_usd']:.4f}",
            )
        yield keys
    if found["guards"]:
        guards = new_table("\nguard", "\ndirection", "\naction", "\ncount", right=("\ncount",))
        for one in found["guards"]:
            guards.add_row(escape(one["rule"]), one["direction"], one["action"], f"{one['count']:,}")
        yield guards
    if found["audit"]["failing"] or found["audit"]["lost"]:
        failing = "can't be written" if found["audit"]["failing"] else "is written again"
        yield Text(f"\nThe audit log {failing}. Lost lines: {found['audit']['lost']:.0f}.", "bold red")


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f} ms"
