"""`gristmill vote`: a local page for blind votes on models' answers, and the votes as an artifact."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from flows.commands.store import open_store
from flows.options import DEFAULT_STORE
from flows.stop import stoppable
from flows.tables import new_table
from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError, harmless
from storage.files import locks
from storage.store import Store

if TYPE_CHECKING:
    from tasks.evaluate.votes.ballot import Question

PART = "side_by_side"


def collect_votes(
    console: Console, store_url: str | None, ref: str, models: list[str] | None, file: Path, voter: str, port: int
) -> None:
    """Serve the page until Ctrl-C, then sum up and make the artifact `votes` from the file. Raises ConfigError for a
    port or a file of votes that is in use, and for a ref without side-by-side answers."""
    from tasks.evaluate.votes.ballot import Ballot, load_questions, read_votes
    from tasks.evaluate.votes.results import by_question, majority
    from tasks.evaluate.votes.server import VoteServer

    store = open_store(store_url or DEFAULT_STORE)
    evaluated = store.get(refs.resolve(store, ref))
    if not evaluated.has_folder(PART):
        raise ConfigError(
            f"{ref} has no side-by-side answers.", "Name an evaluation of a profile with evaluate.side_by_side."
        )
    compared = evaluated.part(PART)
    if models is not None and len(set(models)) < 2:
        raise ConfigError("One model can't be compared.", "Name two: --model base --model sft.")
    questions, equal = load_questions(compared.path, models)
    with locks.hold_if_free(file.with_name(f".{file.name}.lock")) as free:
        if not free:
            raise ConfigError(f"Another `gristmill vote` writes to {file}.", "End it, or choose another file: --votes.")
        ballot = Ballot(questions, file, voter)
        with stoppable() as stopped:
            try:
                with VoteServer(ballot, port) as server:
                    console.print(
                        f"{len(questions):,} questions, {len(ballot.given):,} of them answered by {harmless(voter)}"
                        + (f". {equal:,} pairs of equal answers are left out." if equal else "."),
                        markup=False,
                    )
                    console.print(f"Open {server.address}", markup=False, soft_wrap=True, highlight=False)
                    console.print("Keys: ← → for the better answer, ↓ for neither, u to undo. Ctrl-C ends and sums up.")
                    server.serve_forever(poll_interval=0.2)
            except KeyboardInterrupt:
                console.print()
        _sum_up(console, ballot.path, questions)
        voted, _ = by_question(questions, read_votes(file))
        if any(majority(winners) for winners in voted.values()):
            _keep(console, store, ref, file, compared)
        else:
            console.print("No answer is preferred to another yet, so there are no preferences to learn from.")
    if stopped.reason is not None:
        raise SystemExit(stopped.exit_code)


def _sum_up(console: Console, file: Path, questions: list[Question]) -> None:
    """Print how often each model won, with intervals, by all votes in the file."""
    from tasks.evaluate.side_by_side.report import pair_rows
    from tasks.evaluate.votes.ballot import read_votes
    from tasks.evaluate.votes.results import standings_of

    standings = standings_of(questions, read_votes(file))
    if standings is None:
        console.print("No votes.")
        return
    rows = pair_rows(standings, dict.fromkeys(standings.pairs, 0))
    heads = [head for head in rows[0] if head != "left out"]
    table = new_table(*heads)
    for row in rows:
        table.add_row(*(escape(harmless(html.unescape(str(row[head])))) for head in heads))
    console.print(table)
    console.print(f"The votes are in {file}", markup=False, soft_wrap=True, highlight=False)


def _keep(console: Console, store: Store, ref: str, file: Path, compared: Artifact) -> None:
    """Store the preferences as an artifact, and print how a profile names them."""
    from tasks.evaluate.votes.config import VotesConfig
    from tasks.evaluate.votes.stage import PAIRS, votes
    from tasks.stage.runtime import Runtime
    from tasks.stage.session import Session, open_session

    name = ref.partition("@")[0]
    profile = name.rpartition("/")[0] if refs.history(store, name) else "votes"
    with open_session(Session(store, Runtime(store=store.url), profile)):
        made, _ = votes.materialize(VotesConfig(file=str(file.resolve())), (compared,))
    kept = made.manifest.counts["questions"]["kept"] if made.manifest else 0
    console.print(f"{profile}/votes has {kept:,} preferences. As a source of download for dpo:", markup=False)
    source = f"- {{kind: files, name: votes, role: preferences, paths: [{made.path.resolve() / PAIRS}]}}"
    console.print(source, markup=False, soft_wrap=True, highlight=False)
