"""The LSTM in the package `tox-block`, read as data and scored by our own kernel.

It was trained on 159,571 comments of Wikipedia's editors with six labels (Jigsaw's Toxic Comment set, under CC0, while
the package is MIT), and is the only model in a package that distinguishes a threat from an oath. The package itself
needs TensorFlow and unpickles its vocabulary. Here neither is loaded: the weights are read at fixed offsets of a file
with a known digest, and the pickle is only disassembled.
"""

from __future__ import annotations

import functools
import pickletools
from collections.abc import Iterator
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.digests import file_digest
from storage.errors import SourceError
from storage.shards.arrays import Float32, Float64, UInt8
from tasks.filter.fasttext_model.classifier import word_table
from tasks.filter.fasttext_model.tokens import fold, term_kinds
from tasks.filter.fasttext_model.word_kernels import BREAK, LETTER
from tasks.filter.toxicity import lstm_kernels
from tasks.stage.output import Output
from tasks.text.packages import package_file

PACKAGE = "tox-block"
FOLDER = "tox_block/trained_models"
WEIGHTS = ("lstm_model_0.1.2.h5", "587d40726f1250341a3661fac099e46582cf34cdd5136eb88a726bf6d62ec24e")
VOCABULARY = ("encoder_0.1.2.pkl", "f73db76ce4138c0a566cf91a84077ab66db1f5da40d795d2f751b5a157d91ce7")
TOXIC_SHARE = 0.0958  # of the training comments
WORDS, UNITS = 20_000, 50  # row 0 of the embedding is for padding
LONGEST = 100  # words
# Offsets of the uncompressed arrays in that HDF5 file, and their shapes
ARRAYS = {
    "embedding": (10_280, (WORDS, UNITS)),
    "forward_kernel": (4_014_040, (UNITS, 4 * UNITS)),
    "forward_recurrent": (4_056_088, (UNITS, 4 * UNITS)),
    "forward_bias": (4_096_088, (4 * UNITS,)),
    "backward_kernel": (4_096_888, (UNITS, 4 * UNITS)),
    "backward_recurrent": (4_138_936, (UNITS, 4 * UNITS)),
    "backward_bias": (4_178_936, (4 * UNITS,)),
    "hidden": (4_183_032, (2 * UNITS, UNITS)),
    "hidden_bias": (4_179_736, (UNITS,)),
    "output": (4_206_304, (UNITS, 6)),
    "output_bias": (4_179_936, (6,)),
}
LABEL = 0  # toxic. The others are severe toxic, obscene, threat, insult, identity hate
TABLE, WEIGHTS_FILE = "lstm_words.txt", "lstm.npz"


def export_lstm(out: Output) -> None:
    """Write the vocabulary and the weights. Raises SourceError for a package with other contents."""
    data = _verified_bytes(*WEIGHTS)
    arrays: dict[str, Any] = {
        name: np.frombuffer(data, "<f4", int(np.prod(shape)), at).reshape(shape) for name, (at, shape) in ARRAYS.items()
    }
    (out.path / TABLE).write_text("".join(f"{word}\n" for word in read_vocabulary()), encoding="utf-8")
    np.savez(out.path / WEIGHTS_FILE, **arrays)


@functools.cache
def read_vocabulary() -> list[str]:
    """The words of rows 1, 2, …: Keras numbers them by their counts, the most frequent first, and the counts are the
    first mapping in the pickle."""
    counts = dict(_first_mapping(_verified_bytes(*VOCABULARY)))
    return sorted(counts, key=lambda word: -counts[word])[: WORDS - 1]


def _first_mapping(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield the pairs of a string and a number in a pickle, from the first OrderedDict to the end of its items."""
    operations: Any = ((op.name, value) for op, value, _ in pickletools.genops(data) if "PUT" not in op.name)
    inside = dropwhile(lambda item: item != ("GLOBAL", "collections OrderedDict"), operations)
    for (name, value), (following, number) in pairwise(inside):
        if (name, value) == ("GLOBAL", "collections defaultdict"):
            return
        if name == "BINUNICODE" and following.startswith("BININT"):
            yield value, number


def _verified_bytes(name: str, digest: str) -> bytes:
    path = package_file(PACKAGE, f"{FOLDER}/{name}")
    if file_digest(path) != digest:
        raise SourceError(f"{path} differs from the file that {PACKAGE} ships.", f"Reinstall {PACKAGE}.")
    return path.read_bytes()


class Lstm:
    """The exported model in a folder."""

    def __init__(self, folder: Path) -> None:
        words = (folder / TABLE).read_bytes().split(b"\n")[:-1]
        table = word_table(words)
        with np.load(folder / WEIGHTS_FILE, allow_pickle=False) as file:
            arrays = {name: np.ascontiguousarray(file[name], np.float32) for name in file.files}
        directions: list[Float32] = []
        for name in ("forward", "backward"):
            embedding = arrays["embedding"][1 : len(words) + 1].astype(np.float64)
            inputs = embedding @ arrays[f"{name}_kernel"] + arrays[f"{name}_bias"]
            directions += [inputs.astype(np.float32), arrays[f"{name}_recurrent"]]
        output = np.ascontiguousarray(arrays["output"][:, LABEL])
        layers = (arrays["hidden"], arrays["hidden_bias"], output, float(arrays["output_bias"][LABEL]))
        self.model: Any = (_word_kinds(), *table, *directions, *layers)

    def log_odds(self, texts: pa.Array) -> Float64:
        """The log-odds that a text is toxic, at the share of toxic comments in the training set."""
        odds = np.zeros(len(texts))
        for part in fold(texts):
            scores = np.empty(len(part.rows))
            arguments: tuple[Any, ...] = (*self.model, part.data, part.begins, part.ends, LONGEST, scores)
            lstm_kernels.score_texts(*arguments)
            odds[part.rows] = scores
        return odds


def _word_kinds() -> UInt8:
    """Keras's words: letters, digits and apostrophes."""
    kinds = term_kinds().copy()
    kinds[ord("_")] = BREAK
    kinds[ord("'")] = LETTER
    return kinds
