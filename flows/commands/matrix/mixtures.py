"""The command `mix`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.options import Overrides, ProfileName, StoreUrl, Yes, settings
from flows.tables import Terminal

console = Terminal()


def mix(
    profile: ProfileName,
    runs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="mixtures to try, by default 8 for each source")
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy",
            metavar="K=V",
            help="a setting of the small runs, such as pretrain.model.depth=4 (repeatable), by default a quarter of "
            "the profile's steps",
        ),
    ] = None,
    sources: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="the sources to mix, by default all. Others aren't trained on")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="NAME[=WEIGHT]",
            help="a source, whose held-out text is to be predicted well, or with weights a file or a benchmark's right "
            "answers too (repeatable), by default held-out text of all sources that are mixed",
        ),
    ] = None,
    max_epochs: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="N", help="read no source more often, by default as pretrain.max_epochs or 4"),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=0, metavar="N", help="runs of each arm that check the proposal (0: no check)")
    ] = 3,
    full: Annotated[bool, typer.Option("--full", help="check it at the profile's own size")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="trainings at once, as in ablate")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="show what would be trained, and how long that takes")] = False,
    overrides: Overrides = None,
    store: StoreUrl = None,
    yes: Yes = False,
) -> None:
    """Find the shares of the sources that train the best model, by a swarm of small runs.

        gristmill mix tiny --target speeches --target encyclopedia-en

    Each run has another mixture. A law is fitted to their losses on the target, and proposes shares with intervals.
    They are then compared with natural proportions and with shares as even as the repeats allow, by runs with other
    seeds. A source's own held-out text always gains by a larger share of it: to find out whether a source helps others,
    leave it out of the target.

    Run it again to go on after an interruption.
    """
    from flows.commands.matrix.mix import run_mix, show_mix_plan
    from flows.matrix.mixtures import AskedMix

    asked = AskedMix(
        profile,
        settings(overrides, store),
        tuple(proxy or ()),
        runs,
        seeds,
        tuple(name.strip() for name in (sources or "").split(",") if name.strip()),
        tuple(target or ()),
        max_epochs,
        full,
    )
    if plan:
        show_mix_plan(console, asked)
    else:
        run_mix(console, asked, jobs, yes)
