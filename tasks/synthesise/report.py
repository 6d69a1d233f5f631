"""What came of the requests: counts and tables of the stage's page, and what the answers cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from storage.shards.documents import SYNTHETIC, Document
from tasks.endpoint.client import Endpoint
from tasks.stage.output import Output
from tasks.synthesise.config import SOURCE, SynthesiseConfig
from tasks.text import tally

UNANSWERED = ("refused_by_server", "repeated_request")
SHOWN, LONGEST = 3, 200  # new documents on the stage's page, and characters of one


@dataclass
class Account:
    """Fates by prompt: `made`, or the reason why an answer is no document. Tokens are those of all answers, as the
    server counted them, and `taken` the number of those that earlier artifacts had."""

    read: int = 0
    fates: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    said: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # see tally
    tokens: Counter[str] = field(default_factory=Counter)
    taken: int = 0
    shown: list[Document] = field(default_factory=list)

    def add(self, document: Document, prompt: str) -> None:
        """Add a new document."""
        self.fates[prompt]["made"] += 1
        tally.add(self.said[document.source], document, len(document.text.encode()))
        if len(self.shown) < SHOWN:
            self.shown.append(document)

    @property
    def asked(self) -> int:
        """Answers, and requests that have none."""
        return sum(fates.total() for fates in self.fates.values())

    @property
    def answers(self) -> int:
        """Answers that a server gave."""
        return sum(map(_answers, self.fates.values()))

    @property
    def made(self) -> int:
        """New documents."""
        return sum(fates["made"] for fates in self.fates.values())

    @property
    def removed(self) -> Counter[str]:
        """Answers by the reason why they are no documents."""
        every = sum(self.fates.values(), Counter[str]())
        return Counter({reason: number for reason, number in every.items() if reason != "made"})


def report(account: Account, config: SynthesiseConfig, endpoint: Endpoint, out: Output) -> None:
    """Account for everything, and write the tables."""
    out.account(documents_in=account.read + account.asked, kept=account.read + account.made, removed=account.removed)
    out.count(downloaded=account.read, answers=account.answers, made=account.made, **account.tokens)
    out.count(
        summary=f"{account.read:,} documents, and {account.made:,} made of {account.answers:,} answers by "
        f"{config.model}"
    )
    rows = [
        {"prompt": prompt.name, "source": SOURCE.format(prompt.name), "answers": _answers(fates), **_row(fates)}
        for prompt in config.prompts
        if (fates := account.fates[prompt.name])
    ]
    out.table("Answers by prompt", [{**dict.fromkeys(sorted(account.removed), 0), **row} for row in rows])
    for key, title in ((tally.LANGUAGE, "language"), (tally.LICENCE, "licence")):
        stated = [
            {"source": source, title: value, "documents": number}
            for source in config.new_sources
            for value, number in tally.by_value(account.said[source], key, account.fates[_prompt(source)]["made"])
        ]
        if any(row[title] != tally.NOT_STATED for row in stated):
            out.table(f"Documents by {title}", stated)
    shown = [
        {"source": one.source, "id": one.id, "text": " ".join(one.text.split())[:LONGEST]} for one in account.shown
    ]
    out.table("New documents", shown)
    _cost(account, endpoint, out)


def _answers(fates: Counter[str]) -> int:
    return fates.total() - sum(fates[reason] for reason in UNANSWERED)


def _row(fates: Counter[str]) -> dict[str, int]:
    return {"documents": fates["made"], **{name: number for name, number in sorted(fates.items()) if name != "made"}}


def _prompt(source: str) -> str:
    return source.removeprefix(SYNTHETIC)


def _cost(account: Account, endpoint: Endpoint, out: Output) -> None:
    """What was asked for this artifact, over all attempts to make it, and what that cost."""
    paid = endpoint.paid
    tokens = {name: paid.total(name) for name in ("prompt_tokens", "completion_tokens")}
    refused = account.removed["refused_by_server"]
    facts: dict[str, float] = {
        "requests": len(paid) + refused,
        "requests_refused": refused,
        "requests_repeated": endpoint.repeated,
        "answers_taken": account.taken,
        **tokens,
    }
    price, told = out.runtime.synthesise.price, ""
    if price is not None and (any(tokens.values()) or not paid):
        facts["cost"] = round(price.of(*tokens.values()), 6)
        told = f", {money(facts['cost'])} by runtime.synthesise.price"
    out.fact(**facts)
    out.fact_table(
        "Endpoint", [{"measure": name.replace("_", " "), "number": number} for name, number in facts.items()]
    )
    counted = f"{tokens['prompt_tokens']:,} tokens in, {tokens['completion_tokens']:,} out{told}"
    if len(paid) and not any(tokens.values()):
        counted = f"{endpoint.host} counted no tokens, so their price isn't known"
    out.note(
        f"{facts['requests']:,} requests{f', {refused:,} of them refused' if refused else ''}, and "
        f"{account.taken:,} answers of earlier runs. {counted}"
    )


def money(cost: float) -> str:
    """An amount of money in words: with two digits after the point, or the first two of a small one."""
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.2g}"
