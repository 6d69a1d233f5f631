"""Arguments of a benchmark that nobody can follow, told as errors of the profile."""

from __future__ import annotations

import difflib

from storage.errors import ConfigError
from tasks.evaluate.score.config import ScoreConfig

OF_THE_HARNESS = ("until", "max_gen_toks")


def check_generation(config: ScoreConfig) -> None:
    """Raises ConfigError for an argument that neither the harness nor transformers knows, before anything is asked."""
    from transformers import GenerationConfig

    known = [*OF_THE_HARNESS, *GenerationConfig().to_dict()]
    for name in config.generation:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            raise ConfigError(
                f"{config.task}: {name} is no argument of generation.",
                f"Did you mean {' or '.join(near)}?" if near else "Correct `generation` of the task.",
            )
