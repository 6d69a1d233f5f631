"""What a base makes of a longer context, before training and after: its loss by position, and numbers that it finds.

Loss by position is of the beginnings of held-out documents that fill the context. If later tokens cost as little as
those at the positions that the base knew, it uses what it reads.

The needle test (Mohtashami & Jaggi 2023, "Landmark attention", section 4.2) hides a sentence with a random number in
held-out text and begins it again at the end. A number is found if no token is likelier than each of its tokens, after
those before it. Ends of documents are left out of the text, as models learn not to look beyond them.

Shapes: N rows, B rows of a pass, T tokens, K buckets of positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from models.kernels.attention import for_any_shape
from models.kernels.cross_entropy import IGNORED
from models.tokenizer import beginning, load_tokenizer
from storage.shards.arrays import Int64
from storage.shards.token_stream import Stretches, TokenStream
from storage.shards.tokens import read_header
from tasks.pretrain.engines import Engine
from tasks.pretrain.evaluation import Rows, bucket_sums
from tasks.pretrain.held_out_change import Change
from tasks.pretrain.spec import TrainSpec

BUCKETS = 8  # of positions
LENGTHS = (8, 4, 2, 1)  # the context divided by these
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the text, after which the sentence stands
EACH = 4  # numbers of a length and a depth
DIGITS = 5
MOST = 1 << 22  # tokens of held-out text to hide numbers in
SAID = "\nThe secret number is"


class LongContextChange(Change):
    """The positions of held-out documents and the hidden numbers, as many for each length and depth."""

    def __init__(self, spec: TrainSpec) -> None:
        super().__init__(spec.scratch / "long-before.json")
        context, stream = spec.context, TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest)
        self.edges = [context * number // BUCKETS for number in range(BUCKETS + 1)]
        most = max(1, spec.config.validation_tokens // context)
        self.documents = long_documents(stream, stream.document_lengths(spec.validation), context, most)
        tokenizer = load_tokenizer(spec.tokenizer)
        begun, end = beginning(tokenizer), read_header(spec.validation[0]).eos_id
        text = stream.read(0, max(MOST, 2 * context))
        text = text[~np.isin(text, [end, *begun])]

        def ids(words: str) -> list[int]:
            found: list[int] = tokenizer.encode(words, add_special_tokens=False, split_special_tokens=True)
            return found

        draw = np.random.default_rng(spec.config.seed)
        self.hidden: dict[int, Rows] = {}
        for length in sorted({context // part for part in LENGTHS}):
            rows = [hidden_number(text, length, depth, draw, begun, ids) for depth in DEPTHS for _ in range(EACH)]
            if all(row is not None for row in rows):
                whole = np.array(rows)
                self.hidden[length] = Rows(whole[:, 0], whole[:, 1])

    @for_any_shape()  # as `Validation.loss`
    def measured(self, engine: Engine, heartbeat: Callable[[], None]) -> dict[str, Any]:
        positions: list[list[float]] = []
        if self.documents is not None:
            sums_NK3 = bucket_sums(engine, self.documents, self.edges, heartbeat)
            positions = sums_NK3.sum(0)[:, [0, 2]].tolist()
        found = []
        for length, rows in self.hidden.items():
            sums_N3 = bucket_sums(engine, rows, [0, length], heartbeat)[:, 0]
            whole_N = sums_N3[:, 1] == sums_N3[:, 2]
            found.append(whole_N.view(len(DEPTHS), EACH).double().mean(1).tolist())
        kinds = {"edges": self.edges, "lengths": [*self.hidden], "depths": DEPTHS}
        return {**kinds, "positions": positions, "found": found}


def long_documents(stream: Stretches, lengths: Int64, context: int, most: int) -> Rows | None:
    """The beginnings of up to `most` evenly spread documents that fill a context. None without any."""
    starts = (np.cumsum(lengths) - lengths)[lengths > context]
    if not len(starts):
        return None
    count = min(most, len(starts))
    chosen = starts[np.arange(count) * len(starts) // count]
    rows = np.array([stream.read(start, context + 1) for start in chosen.tolist()])
    return Rows(rows[:, :-1], rows[:, 1:])


def hidden_number(
    text: Int64,
    length: int,
    depth: float,
    draw: np.random.Generator,
    begun: list[int],
    encode: Callable[[str], list[int]],
) -> tuple[Int64, Int64] | None:
    """(T,) ids and targets of a row in which a number is hidden and asked for. None if the text is too short for it, or
    the length for the sentences."""
    digits = "".join(map(str, draw.integers(0, 10, DIGITS)))
    number = encode(f" {digits}")
    said, asked = [*encode(SAID), *number, *encode(".\n")], [*encode(SAID), *number]
    room = length + 1 - len(begun) - len(said) - len(asked)
    if room < 0 or room > len(text):
        return None
    start = int(draw.integers(0, len(text) - room + 1))
    filler, at = text[start : start + room].tolist(), round(depth * room)
    row = np.array([*begun, *filler[:at], *said, *filler[at:], *asked], np.int64)
    targets = np.full(length, IGNORED, np.int64)
    targets[-len(number) :] = number
    return row[:-1], targets
