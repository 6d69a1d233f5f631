"""What a signal of the profile is measured by: a function of the user's, or a sequence classifier."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.filter.classifier.config import ClassifierConfig
from tasks.stage.config import StageConfig

NAME = re.compile(r"[a-z][a-z0-9_]*")
ERROR = "error"  # the column that says why a document has no values
SCORED_BY = "scored_by"  # the column that says which model of a cascade scored it
SCORES = ("score", "highest", "lowest", "share", "first")  # a classifier's


class PythonSignalConfig(StageConfig):
    """A Python function over batches of documents, which returns a number for each, in one column or more."""

    kind: Literal["python"] = "python"
    file: str | None = Field(
        None, min_length=1, description="Python file with the function; its digest is part of the key. It is run"
    )
    function: str = Field("measure", pattern=r"^[A-Za-z_]\w*$", description="name of the function in `file`")
    entry_point: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="in place of `file`, `package.module:function` of an installed package; its version and the "
        "module's source are part of the key",
    )
    gets: Literal["texts", "documents"] = Field(
        "texts",
        description="what the function gets: a list of texts, or of mappings with id, text, source and metadata",
    )
    columns: list[str] = Field(
        ["score"], min_length=1, description="names of the columns that it returns, in small letters"
    )
    reads: list[str] = Field([], description="files that the function reads; their digests are part of the key")

    @property
    def remark(self) -> str:
        """The column that the ledger quotes."""
        return ERROR

    @property
    def where(self) -> str:
        """The function, as messages name it."""
        return self.entry_point or f"{self.file}:{self.function}"

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.entry_point is None):
            raise ValueError("name one: a file, or an entry_point")
        wrong = [name for name in self.columns if not NAME.fullmatch(name) or name == ERROR]
        if wrong or len(set(self.columns)) < len(self.columns):
            raise ValueError(
                f"columns are {', '.join(self.columns)}: write each once, in small letters, digits and _; {ERROR} is "
                "taken"
            )
        return self


class ClassifierSignalConfig(ClassifierConfig):
    """A sequence classifier of transformers, in a folder or in a repository of the hub; its scores of the pieces of a
    document are summed up in columns."""

    piece_threshold: float = Field(0.5, description="score above which a piece counts in the column `share`")

    @property
    def columns(self) -> tuple[str, ...]:
        """What can be bounded."""
        return SCORES

    @property
    def remark(self) -> str:
        """The column that the ledger quotes."""
        return SCORED_BY

    def scorer(self) -> ClassifierConfig:
        """What scores a piece, whatever is made of the scores."""
        return ClassifierConfig.model_validate(self.model_dump(exclude={"piece_threshold"}))


SignalConfig = Annotated[PythonSignalConfig | ClassifierSignalConfig, Field(discriminator="kind")]
