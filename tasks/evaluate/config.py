"""What a profile sets for evaluation."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig

PROMPTS = [
    "What is a river?",
    "Who was Isaac Newton?",
    "Where is the city of Lyon?",
    "What is 12 plus 30?",
    "Name three animals that live in the sea.",
    "Is the moon larger than the earth?",
    "How do I make a cup of tea?",
    "Write one sentence about winter.",
    "Translate into French: good morning.",
    "Tell me a short story about a dog.",
]


class EvaluateConfig(StageConfig):
    """Which benchmarks, how much of each, and what the models are asked besides."""

    tasks: list[str] | None = Field(None, description="benchmarks by file name (default: all that download made)")
    max_items: int | None = Field(None, ge=1, description="use only the first so many questions of each benchmark")
    validation_tokens: int | None = Field(
        None, ge=1, description="held-out tokens for bits per byte, evenly spread (default: all)"
    )
    dirty_share: float = Field(
        0.0, ge=0, lt=1, description="a question with a larger share of its n-grams in the training text is dirty"
    )
    prompts: list[str] = Field(PROMPTS, description="what every model is asked, side by side; an empty list: nothing")
    answer_tokens: int = Field(48, ge=1, description="maximum length of an answer to them, in tokens")
    batch_size: int = Field(
        32, ge=1, description="sequences in a forward pass; padding changes the last digits of scores"
    )
