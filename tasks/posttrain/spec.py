"""The spec that a post-training stage passes to its child."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from tasks.children.spec import ChildSpec


class PosttrainSpec(ChildSpec):
    """Written as JSON by the stage, read by every rank.

    `config` is that of the method, as JSON. `identity` is a SHA-256 over all that decides the weights: a checkpoint
    with another is refused. `base` names the model in the config of an adapter over it. `teacher` and `judge` are the
    folders of the model to imitate and of the reward model, `reference` is the file with the log-probabilities of the
    rows' answers, and `top_tokens` the folder with a teacher's likeliest tokens, for methods that need them. `digests`
    are those of files outside the store that rewards read.
    """

    method: str
    config: dict[str, Any]
    model: Path
    base: str
    rows: list[Path]
    teacher: Path | None = None
    reference: Path | None = None
    top_tokens: Path | None = None
    judge: Path | None = None
    digests: dict[str, str] = Field(default_factory=dict)
    identity: str
