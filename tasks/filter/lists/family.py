"""The user's lists as a filter family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from storage.errors import ConfigError
from tasks.filter.family import Family, measuring_half
from tasks.filter.lists.measure import ListsConfig, fingerprints, lists_signals
from tasks.filter.rules import Rule, Section, Tested, Turn

ANY = "any"  # the language of a list for all documents


class ListsRules(Section):
    """Hosts, addresses and words that documents must not have."""

    measure: ListsConfig = Field(description="the lists")
    keep_listed_words: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        {},
        description="share of the documents with a listed word to keep, drawn by a hash of the text, by language as "
        "in `measure.words`. 0 for other languages",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        unknown = sorted(self.keep_listed_words.keys() - self.measure.words.keys())
        if unknown:
            raise ValueError(f"keep_listed_words names {', '.join(unknown)}, but measure.words lacks a list for it")
        return self


@dataclass(frozen=True)
class Unlisted:
    """A document passes unless it has an entry of a list: its signal is "". With `language`, only for documents in
    it."""

    name: str
    signal: str
    language: str = ANY
    keep: float = 0.0  # share of the documents with an entry that pass anyway
    threshold: float | None = None
    turn: Turn = Turn.USUAL

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        fails = pc.not_equal(signals[self.signal], "").to_numpy(zero_copy_only=False)
        if self.language != ANY:
            if "language" not in signals.schema.names:
                raise ConfigError(
                    f"The words for {self.language} need the language of documents, which isn't measured.",
                    "Set `filter.language`, or name the list `any`.",
                )
            mine = pc.equal(signals["language"], self.language).fill_null(False).to_numpy(zero_copy_only=False)
            fails = fails & mine
        if self.keep:
            fails = fails & (signals["listed_draw"].to_numpy() >= self.keep)
        return Tested(fails, np.zeros(len(fails), np.bool_), fails.astype(np.float64))

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """The entry that the document has."""
        return signals[self.signal]


def _rules(lists: ListsRules | None) -> Iterator[Rule]:
    if lists is None:
        return
    if lists.measure.hosts:
        yield Unlisted("lists.hosts", "listed_host", turn=Turn.FIRST)
    if lists.measure.urls:
        yield Unlisted("lists.urls", "listed_url", turn=Turn.FIRST)
    if lists.measure.url_words:
        yield Unlisted("lists.url_words", "listed_url_words", turn=Turn.FIRST)
    for language in sorted(lists.measure.words):
        yield Unlisted(
            f"lists.words.{language}", f"listed_word_{language}", language, lists.keep_listed_words.get(language, 0.0)
        )


def _fingerprints(lists: ListsRules | None) -> dict[str, str]:
    """Digests of the files for the filter's own key: the verdicts depend on them, and if filtered documents are stored,
    the measuring stage isn't asked."""
    return {} if lists is None else fingerprints(lists.measure)


FAMILY = Family(("lists",), lists_signals, measuring_half, _rules, fingerprints=_fingerprints)
