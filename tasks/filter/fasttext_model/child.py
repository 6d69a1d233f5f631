"""The child process that trains a fastText classifier: the library, one thread, and zeroed memory.

With one thread, fastText 0.9.3 initialises only the first tenth of its matrix. The rest is whatever the allocator
returns (`DenseMatrix::uniform`). This causes most of its "Encountered NaN" errors, and a seed doesn't help. Fresh pages
from the kernel are zero, and the parent sets the allocator to map every larger block afresh (`MALLOC_MMAP_THRESHOLD_`),
so here the rest is zero and runs repeat bit for bit. With more threads the whole matrix is initialised, but threads
overwrite each other's updates, and no two runs are equal.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from storage.errors import TrainingError
from tasks.children.child import emit, run_as_child
from tasks.filter.fasttext_model.config import TrainingConfig

ATTEMPTS = 4


class Spec(BaseModel):
    """The child's input: examples in fastText's format, and where to write the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: TrainingConfig
    examples: Path
    model: Path


def train(path: Path) -> None:
    """Train, save, and emit `attempts` and the `learning_rate` of the last attempt, which is halved after each NaN.

    Raises TrainingError if every attempt ends with a NaN.
    """
    import fasttext

    spec = Spec.model_validate_json(path.read_text())
    config = spec.config
    for attempt in range(ATTEMPTS):
        learning_rate = config.learning_rate / 2**attempt
        try:
            model = fasttext.train_supervised(
                str(spec.examples),
                dim=config.dim,
                epoch=config.epochs,
                lr=learning_rate,
                wordNgrams=config.word_ngrams,
                bucket=config.buckets,
                minCount=config.min_count,
                minn=0,
                maxn=0,
                loss="softmax",
                seed=config.seed,
                thread=1,
                verbose=0,
            )
        except RuntimeError as error:
            if "NaN" not in str(error):
                raise
            continue
        model.save_model(str(spec.model))
        emit(attempts=attempt + 1, learning_rate=learning_rate)
        return
    raise TrainingError(
        f"fastText's training ended with a NaN {ATTEMPTS} times, the last at a learning rate of {learning_rate:g}.",
        "Lower `learning_rate` of this classifier.",
    )


if __name__ == "__main__":
    run_as_child(train)
