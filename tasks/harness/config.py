"""A task of lm-evaluation-harness in a profile: where its definition and its data come from."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig


class HarnessSource(StageConfig):
    """A task, group or tag of the harness, by name, with its data."""

    task: str = Field(pattern=r"^[\w.\-+()]+$", description="name of a task, group or tag of lm-evaluation-harness")
    only: list[str] | None = Field(None, min_length=1, description="only these tasks of a group (default: all)")
    folder: str | None = Field(None, description="folder with the definition (null: a task of the harness's own)")
    files: dict[str, str] | None = Field(
        None,
        min_length=1,
        description="local file or glob for each split that the definition names, where {subset} stands for the name "
        "of a task's part of the data set (null: from the hub)",
    )
    columns: dict[str, str] = Field(
        {},
        description="columns that the files lack, each as a Jinja template over a row's columns (also in `row`). A "
        "template of one expression may yield a list or a mapping",
    )
    dataset: str | None = Field(None, description="data set of the hub to use instead of the definition's")
    revision: str | None = Field(
        None, pattern=r"^[0-9a-f]{40}$", description="commit of the data set on the hub (uses the network)"
    )

    @property
    def name(self) -> str:
        """The benchmark's name."""
        return self.task

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.files is None and self.revision is None:
            raise ValueError(f"{self.task} has neither files nor a revision of the hub: give one of them")
        if self.files is not None and (self.revision is not None or self.dataset is not None):
            raise ValueError(f"{self.task} has files and a data set of the hub: remove one of them")
        return self
