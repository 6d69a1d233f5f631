"""The settings of a profile's own signal: a user's function, or a sequence classifier."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tasks.filter.classifier.config import ClassifierConfig
from tasks.stage.user_function import UserFunction

NAME = re.compile(r"[a-z][a-z0-9_]*")
ERROR = "error"  # the column that says why a document has no values
SCORED_BY = "scored_by"  # the column that says which model of a cascade scored the document
SCORES = ("score", "highest", "lowest", "share", "first")  # a classifier's


class PythonSignalConfig(UserFunction):
    """A Python function over batches of documents, which returns a number for each, in one or more columns."""

    kind: Literal["python"] = "python"
    section: ClassVar[str] = "filter.signals"

    function: str = Field("measure", pattern=r"^[A-Za-z_]\w*$", description="name of the function in `file`")
    gets: Literal["texts", "documents"] = Field(
        "texts",
        description="the function's argument: a list of texts, or of mappings with id, text, source and metadata",
    )
    columns: list[str] = Field(
        ["score"], min_length=1, description="names of the columns that it returns, in lower case"
    )

    @property
    def remark(self) -> str:
        """The column that the ledger quotes."""
        return ERROR

    @model_validator(mode="after")
    def _names_columns(self) -> Self:
        wrong = [name for name in self.columns if not NAME.fullmatch(name) or name == ERROR]
        if wrong or len(set(self.columns)) < len(self.columns):
            raise ValueError(
                f"columns are {', '.join(self.columns)}: write each once, in lower-case letters, digits and _, and "
                f"don't use {ERROR}, which is taken"
            )
        return self


class ClassifierSignalConfig(ClassifierConfig):
    """A transformers sequence classifier, from a folder or a repository on the hub, whose scores of a document's pieces
    are summed up in columns."""

    piece_threshold: float = Field(0.5, description="score above which a piece counts in the column `share`")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that bounds may name."""
        return SCORES

    @property
    def remark(self) -> str:
        """The column that the ledger quotes."""
        return SCORED_BY

    def scorer(self) -> ClassifierConfig:
        """The part of the config that determines the scores of pieces."""
        return ClassifierConfig.model_validate(self.model_dump(exclude={"piece_threshold"}))


SignalConfig = Annotated[PythonSignalConfig | ClassifierSignalConfig, Field(discriminator="kind")]
