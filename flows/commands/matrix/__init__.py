"""Commands that run many profiles as one, to say whether a change helps."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.options import Overrides, ProfileName, StoreUrl, Yes, settings
from flows.tables import Terminal

console = Terminal()

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary", metavar="K=V", help="a setting to vary, with a value or [several] besides its own (repeatable)"
    ),
]
Link = Annotated[
    str | None,
    typer.Option(
        metavar="STAGE", help="measure the model of this stage, by default the first that all settings change"
    ),
]


def ablate(
    profile: ProfileName,
    vary: Vary = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="runs of each arm, with different seeds")] = 3,
    each: Annotated[bool, typer.Option("--each", help="one change at a time, in place of all combinations")] = False,
    link: Link = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="trainings at once, by default one on each GPU, or on as many cores as one has threads",
        ),
    ] = None,
    halve: Annotated[
        bool, typer.Option("--halve", help="give up the worse half of the arms after a quarter, then half of the steps")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="show what would be made, what is shared, and how many seeds to take")
    ] = False,
    overrides: Overrides = None,
    store: StoreUrl = None,
    yes: Yes = False,
) -> None:
    """Say whether a change helps: runs with and without it, several seeds each, and what they differ in.

        gristmill ablate tiny --vary filter.fineweb=null --vary 'pretrain.learning_rate=[3e-3, 6e-3]'

    The first arm is the profile as it is. What arms share is made once. All models are measured on the same held-out
    text, which none of them was trained on, and differences are paired by seed. A winner is named only where the
    difference is beyond noise. Run it again to go on after an interruption.

    Without --vary it measures the noise: how many seeds a difference needs.
    """
    from flows.commands.matrix.ablate import AskedMatrix, run_ablation, show_matrix_plan

    asked = AskedMatrix(profile, settings(overrides, store), vary or [], seeds, each, link, jobs, halve)
    if plan:
        show_matrix_plan(console, asked)
    else:
        run_ablation(console, asked, yes)
