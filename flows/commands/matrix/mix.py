"""`gristmill mix`: runs a swarm at a terminal, and prints the mixture that it proposes and how that compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from flows.commands.matrix.ablate import Prepared, Work, counts_of, run_all, show_effects, show_needed, show_rows
from flows.estimates.arithmetic import shape_to_train
from flows.matrix.lanes import jobs_of
from flows.matrix.mixtures import LINK, NATURAL, AskedMix, Grounds, arm_of, grounds_of, reads, swarm_matrix, swarm_of
from flows.matrix.plan import plan_matrix
from flows.plan import plan
from flows.session import session_of
from models.presets import count_parameters
from profiles.schema import Profile
from storage.units import duration
from tasks.ablate.mix.stage import MIXTURE
from tasks.ablate.mix.swarm import default_runs
from tasks.stage.session import Session, Step


def run_mix(console: Console, asked: AskedMix, jobs: int | None, yes: bool = False) -> None:
    """Run a swarm and its check, with progress and tables. Raises what its runs raise."""

    def prepared() -> Prepared:
        profile = asked.reference
        jobs_of(profile, jobs)  # refuses too many before anything starts
        return Prepared(profile, LINK, [profile], _size(asked, profile))

    def here(session: Session) -> None:
        from flows.matrix.mixing import mixed

        profile = asked.reference
        mixed(asked, profile, session, jobs_of(profile, jobs))

    run_all(console, asked, prepared, Work(lambda: _flow(asked, jobs), here), show_mixture, "mix", yes=yes)


def show_mixture(console: Console, steps: Mapping[str, Step]) -> None:
    """Print the tables of a swarm, the mixture that it proposes, and how that compares."""
    counts = counts_of(steps, "mix")
    for title, rows in counts["tables"].items():
        console.print()
        show_rows(console, title, rows)
    console.print(f"\n[bold]Proposed:[/] {escape(counts['summary'])}.", soft_wrap=True, highlight=False)
    if "ablate" in steps:
        show_effects(console, steps)
    console.print(f"\n{MIXTURE}:", highlight=False)
    console.print(
        escape(steps["mix"].artifact.file(MIXTURE).read_text(encoding="utf-8")), highlight=False, soft_wrap=True
    )


def show_mix_plan(console: Console, asked: AskedMix) -> None:
    """Print what a swarm and its check would train, and how long that takes."""
    profile = asked.reference
    lines = plan(profile, session_of(profile, "tokenize"))
    made = lines[-1].manifest if lines[-1].hit else None
    grounds = grounds_of(asked, profile, made)
    console.print(f"[bold]{profile.name}[/] [dim]{_size(asked, profile)}[/]", highlight=False, soft_wrap=True)
    if made is None:
        console.print("The sources aren't counted yet, so their shares aren't known. Times are about right.")
    else:
        show_rows(console, "Sources", _rows(grounds))
    planned = plan_matrix(swarm_matrix(asked, swarm_of(asked, grounds).trained))
    show_needed(console, planned)
    if asked.seeds:
        natural = grounds.shares(grounds.natural)
        one = plan_matrix(asked.matrix([arm_of(NATURAL, natural)], range(1, 2), full=asked.full)).of(LINK)[0]
        runs = 3 * asked.seeds
        took = f": about {duration(runs * one.seconds)} more" if one.seconds else ""
        console.print(f"{runs} trainings with other seeds check the proposal{took}.", highlight=False)


def _rows(grounds: Grounds) -> list[dict[str, str]]:
    columns = zip(grounds.names, grounds.natural, grounds.of_proxy, grounds.of_profile, strict=True)
    return [
        {
            "source": name,
            "natural": f"{natural:.3f}",
            "at most in the swarm": f"{proxy:.3f}",
            "at most proposed": f"{whole:.3f}",
        }
        for name, natural, proxy, whole in columns
    ]


def _size(asked: AskedMix, profile: Profile) -> str:
    """How many runs of which size."""
    names = list(asked.sources) or profile.document_sources
    proxy = asked.small()
    shape = shape_to_train(proxy)
    size = f" of {count_parameters(shape):,} parameters" if shape else ""
    whole = f" ({reads(proxy) / reads(profile):.0%} of the profile's)" if shape else ""
    check = f", then {3 * asked.seeds} to check the proposal" if asked.seeds else ""
    runs = asked.runs or default_runs(len(names))
    return f"{runs} mixtures of {len(names)} sources: runs{size} on {reads(proxy):,} tokens{whole}{check}"


def _flow(asked: AskedMix, jobs: int | None) -> None:
    from flows.matrix.mixing import mixing

    mixing(**asdict(asked), jobs=jobs)
