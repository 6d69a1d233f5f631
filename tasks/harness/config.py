"""A task of lm-evaluation-harness in a profile: where its definition and its data come from."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig


class HarnessSource(StageConfig):
    """A task, group or tag of the harness, by name, with its data."""

    task: str = Field(pattern=r"^[\w.\-+()]+$", description="name of a task, group or tag of lm-evaluation-harness")
    only: list[str] | None = Field(
        None, min_length=1, description="of a group: these of its tasks alone (default: all of them)"
    )
    folder: str | None = Field(None, description="a folder with the definition; null: one of the harness's own")
    files: dict[str, str] | None = Field(
        None,
        min_length=1,
        description="local files or a glob for each split that the definition names; {subset} stands for the name of a "
        "task's part of the data set. null: from the hub",
    )
    columns: dict[str, str] = Field(
        {},
        description="columns that the files lack, each as a Jinja template of a row's columns, which `row` has too; a "
        "single expression may yield a list or a mapping",
    )
    dataset: str | None = Field(None, description="another data set of the hub than the definition's")
    revision: str | None = Field(
        None, pattern=r"^[0-9a-f]{40}$", description="commit of the data set on the hub; uses the network"
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
