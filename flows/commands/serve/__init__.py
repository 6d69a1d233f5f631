"""`gristmill serve`: a release behind an OpenAI-compatible server, and the commands to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows.commands.serve import keys
from flows.commands.serve.audit import audit
from flows.commands.serve.status import status
from flows.options import DEFAULT_STORE
from flows.tables import Terminal

START = "start"


class _Group(TyperGroup):
    """Commands, of which `start` is meant where none is named."""

    unnamed = (START,)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `start` before a release or an option."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [START, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=False,
    epilog="`gristmill serve tiny/export` is `gristmill serve start tiny/export`, whose --help lists the options.",
)
app.add_typer(keys.app, name="keys", help="Make, list and revoke keys.")
console = Terminal(soft_wrap=True, highlight=False)

State = Annotated[Path, typer.Option(help="the server's folder of keys, audit log and logs")]
STATE = Path("serve")


@app.command()
def start(
    release: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[REF | FOLDER]...",
            help="releases: a ref such as tiny/export, or a folder that `release save` wrote",
            show_default=False,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="a YAML file with the settings, see docs/serving.md")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="a YAML file with the policy of the guards, in place of `guards` of --config")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="llama.cpp, vllm, transformers, url or auto")] = None,
    host: Annotated[str | None, typer.Option(help="address to listen at: any but loopback requires keys")] = None,
    port: Annotated[int | None, typer.Option(help="port (0: any free one)")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="K=V", help="override a key of the settings, such as engine.slots=16 (repeatable)"
        ),
    ] = None,
    state: Annotated[Path | None, typer.Option(help="folder of keys, audit log and logs")] = None,
    store: Annotated[str | None, typer.Option(metavar="URL", help="the store of the refs")] = None,
) -> None:
    """Serve releases until Ctrl-C: OpenAI's and Anthropic's API, a chat page, metrics.

        gristmill serve tiny/export

    Without a key, only this machine is served. `gristmill serve keys make` makes one for others.
    """
    from flows.commands.serve.start import serve

    given = {
        "engine.name": engine,
        "host": host,
        "port": port,
        "state": None if state is None else str(state),
        "store": store or (DEFAULT_STORE if config is None else None),
    }
    serve(
        console, release or [], config, policy, [*(overrides or [])], {k: v for k, v in given.items() if v is not None}
    )


@app.command()
def settings() -> None:
    """Print the reference of the settings, docs/serving-settings.md."""
    from flows.commands.serve.start import reference

    print(reference(), end="")


@app.command()
def swap(
    release: Annotated[str, typer.Argument(help="the release to serve from now on: a ref or a folder")],
    model: Annotated[str | None, typer.Option(help="the served name, by default the first")] = None,
    state: State = STATE,
) -> None:
    """Serve another release under the same name, without losing a request. If it fails its proof, the old one stays."""
    from tasks.serve.control import command

    for step in command(state, command="swap", release=release, model=model):
        if "step" in step:
            console.print(f"[dim]{step['step']}[/]")
        else:
            console.print(f"{step['done']['model']} is served from {step['done']['digest']}")


app.command()(audit)
app.command()(status)
