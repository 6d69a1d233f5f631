"""The rules of the user's lists."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from tasks.filter.lists.config import ListsConfig
from tasks.filter.rules import Section


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
