"""Commands that run many profiles as one, to say whether a change helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from flows.options import Overrides, ProfileName, StoreUrl, Yes, settings
from flows.tables import Terminal
from storage.errors import ConfigError

console = Terminal()
Number = TypeVar("Number")

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary", metavar="K=V", help="a setting to vary, with a value or [several] besides its own (repeatable)"
    ),
]
Arms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        metavar="{K: V, …}",
        help="settings that belong together, as one arm besides those of --vary (repeatable)",
    ),
]
Link = Annotated[
    str | None,
    typer.Option(
        metavar="STAGE", help="measure the model of this stage, by default the first that all settings change"
    ),
]


Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="trainings at once, by default one on each GPU, or on as many cores as one has threads"
    ),
]


def ablate(
    profile: ProfileName,
    vary: Vary = None,
    arm: Arms = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="runs of each arm, with different seeds")] = 3,
    each: Annotated[bool, typer.Option("--each", help="one change at a time, in place of all combinations")] = False,
    link: Link = None,
    jobs: Jobs = None,
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

        gristmill ablate tiny --arm '{pretrain.global_batch: 32, pretrain.learning_rate: 4e-3}'

    The first arm is the profile as it is. What arms share is made once. All models are measured on the same held-out
    text, which none of them was trained on, and differences are paired by seed. A winner is named only where the
    difference is beyond noise. Run it again to go on after an interruption.

    Without --vary and --arm it measures the noise: how many seeds a difference needs.
    """
    from flows.commands.matrix.ablate import AskedMatrix, run_ablation, show_matrix_plan

    asked = AskedMatrix(profile, settings(overrides, store), vary or [], arm or [], seeds, each, link, jobs, halve)
    if plan:
        show_matrix_plan(console, asked)
    else:
        run_ablation(console, asked, yes)


def scaling(
    profile: ProfileName,
    budgets: Annotated[
        str, typer.Option(metavar="C,C,…", help="computes of the ladder in FLOPs, such as 1e12,3e12,1e13")
    ],
    sizes: Annotated[
        str | None,
        typer.Option(metavar="W,W,…", help="widths of the model, by default around the best for each budget"),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="trainings of each size and length")] = 1,
    target: Annotated[
        float | None, typer.Option(metavar="C", help="predict the best size for this compute, and its loss")
    ] = None,
    check_rate: Annotated[
        bool, typer.Option("--check-rate", help="try three learning rates at the smallest and the largest size")
    ] = False,
    beyond: Annotated[
        bool, typer.Option("--beyond", help="predict more than ten times beyond the largest budget")
    ] = False,
    jobs: Jobs = None,
    plan: Annotated[bool, typer.Option("--plan", help="show the ladder, and what would be made")] = False,
    overrides: Overrides = None,
    store: StoreUrl = None,
    yes: Yes = False,
) -> None:
    """Say how far scaling leads: small trainings at several sizes and lengths, and the law of their loss.

        gristmill scaling tiny --budgets 3e12,6e12,1.2e13,2.4e13 --target 2e14

    All trainings share the profile's data, and are measured on its held-out text in bits per byte. Longer trainings
    begin from branches of shorter ones. The law predicts the best size for a compute and its loss, with an interval,
    and says how far off it is at the largest budget, without which it was fitted. Later, `gristmill plan` predicts by
    it. Run it again to go on after an interruption.
    """
    from flows.commands.matrix.scaling import run_ladder, show_ladder_plan
    from flows.matrix.ladder import AskedLadder

    asked = AskedLadder(
        profile,
        settings(overrides, store),
        numbers("--budgets", budgets, float),
        numbers("--sizes", sizes or "", int),
        seeds,
        target,
        check_rate,
        beyond,
        jobs,
    )
    if plan:
        show_ladder_plan(console, asked)
    else:
        run_ladder(console, asked, yes)


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
    jobs: Jobs = None,
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


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """The numbers of an option, between commas. Raises ConfigError."""
    try:
        return [kind(one) for one in text.split(",") if one.strip()]
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}.", "Give numbers with commas between them.") from error
