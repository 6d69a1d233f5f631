"""The child process that trains a fastText classifier: the library, one thread, and memory that starts at zero.

fastText 0.9.3 with one thread fills only the first tenth of its matrix and takes the rest as the allocator hands it
out: what lay there before (`DenseMatrix::uniform`). That is where its "Encountered NaN" comes from, and no seed helps.
Pages fresh from the kernel are zeros, and the parent has had the allocator take every larger block fresh
(`MALLOC_MMAP_THRESHOLD_`), so here the rest is zero: a run can be repeated bit for bit. With more threads the matrix is
filled, but they write over each other's work, and no run is like another.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from storage.errors import TrainingError
from tasks.children.child import run_as_child
from tasks.filter.fasttext_model.config import TrainingConfig

ATTEMPTS = 4


class Spec(BaseModel):
    """What the child is told: examples in fastText's format, and where the model goes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: TrainingConfig
    examples: Path
    model: Path


def train(path: Path) -> None:
    """Train and save. Raises TrainingError when numbers overflow at every learning rate tried."""
    import fasttext

    spec = Spec.model_validate_json(path.read_text())
    config = spec.config
    for attempt in range(ATTEMPTS):
        try:
            model = fasttext.train_supervised(
                str(spec.examples),
                dim=config.dim,
                epoch=config.epochs,
                lr=config.learning_rate / 2**attempt,
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
        except RuntimeError as error:  # the library's only word for a NaN
            reason = str(error)
            continue
        model.save_model(str(spec.model))
        return
    raise TrainingError(f"fastText stopped {ATTEMPTS} times: {reason}", "Lower `learning_rate` of this classifier.")


if __name__ == "__main__":
    run_as_child(train)
