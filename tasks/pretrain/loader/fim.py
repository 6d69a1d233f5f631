"""Fill-in-the-middle (FIM): documents rearranged so that their middle comes last, after prefix and suffix.

This teaches a left-to-right model infilling (Bavarian et al. 2022, "Efficient training of language models to fill in
the middle"). A document, as far as a row holds it, is cut at two places into p m s and served as

    prefix, suffix, middle (PSM)    <|fim_prefix|> p <|fim_suffix|> s <|fim_middle|> m
    suffix, prefix, middle (SPM)    <|fim_prefix|> <|fim_suffix|> s <|fim_middle|> p m

SPM is the paper's second variant, also used by StarCoder (Li et al. 2023): the special tokens distinguish the orders,
and the prefix continues into the middle without a token between them. As in the paper's context-level form, documents
are rearranged after rows were cut, so that all three parts are in one row, even a shortened one. Cuts are drawn
uniformly over tokens (the paper's best are over characters, which ids don't show). EOS stays at the document's end.

A rearranged document is three tokens longer. The row is not: as many tokens as were inserted are cut off its end,
targets included, beginning with padding if the row has any.

A model learns that after EOS the prefix token is as likely as the rate says. Validation, which lacks FIM tokens, pays
for that: about -ln(1 - rate) nats a document.

The draws for a document follow from the seed, the sample's number and the document's place in the sample, so they don't
depend on ranks, micro-batches or a resume.

Shapes: R rows of W tokens, including the last target, and D documents, or their parts in a row.
"""

from __future__ import annotations

import hashlib

import numpy as np

from storage.shards.arrays import Float64, Int64, UInt64
from tasks.pretrain.fim_tokens import FimTokens
from tasks.pretrain.loader.batch import Batch
from tasks.pretrain.loader.permutation import mix

SHORTEST = 3  # tokens, one for each part
DRAWS = 4  # per document: whether, in which order, two cuts
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's step (Steele et al. 2014)


class FillInTheMiddle:
    """Rearranges a share `rate` of all documents, of which a share `spm_share` in SPM order."""

    def __init__(self, fim_tokens: FimTokens, *, eos_id: int, rate: float, spm_share: float, seed: int) -> None:
        self.fim_tokens, self.eos_id, self.rate, self.spm_share = fim_tokens, eos_id, rate, spm_share
        self._key = np.frombuffer(hashlib.sha512(f"{seed} fim".encode()).digest()[:8], "<u8")  # (1,)

    def rearrange(self, batch: Batch, first: int, parts: int) -> Batch:
        """The rearranged batch, of the same shape. Its rows are samples `first` and following, `parts` rows each."""
        rows_RW = np.concatenate((batch.ids, batch.targets[:, -1:]), axis=1)
        height, width = rows_RW.shape
        is_end_RW = rows_RW == self.eos_id
        last_RW = is_end_RW.copy()
        last_RW[:, -1] = True
        ends_D = np.flatnonzero(last_RW)
        starts_D = np.concatenate((np.zeros(1, np.int64), ends_D[:-1] + 1))
        eos_D = is_end_RW.ravel()[ends_D].astype(np.int64)
        lengths_D = ends_D + 1 - eos_D - starts_D
        drawn = self._draw(first + starts_D // (width * parts))
        is_text_D = rows_RW.ravel()[starts_D] != ~self.eos_id  # padding follows the last EOS of a packed row
        chosen_D = (drawn[0] < self.rate) & (lengths_D >= SHORTEST) & is_text_D
        if not chosen_D.any():
            return batch
        cuts = np.sort((drawn[2:] * (lengths_D + 1)).astype(np.int64), axis=0)
        # A document that is not rearranged is all middle, without FIM tokens. In SPM the prefix is part of the middle
        before_D = np.where(chosen_D & (drawn[1] >= self.spm_share), cuts[0], 0)
        behind_D = np.where(chosen_D, cuts[1], lengths_D)
        # The new order as ranges (begin, length) of the flattened rows, behind which the three FIM tokens are appended
        mark_D, place = chosen_D.astype(np.int64), rows_RW.size
        parts_of_row = (
            (np.full_like(starts_D, place), mark_D),
            (starts_D, before_D),
            (np.full_like(starts_D, place + 1), mark_D),
            (starts_D + behind_D, lengths_D - behind_D),
            (np.full_like(starts_D, place + 2), mark_D),
            (starts_D + before_D, behind_D - before_D),
            (ends_D, eos_D),
        )
        order = _joined(*(np.stack(column, axis=1).ravel() for column in zip(*parts_of_row, strict=True)))
        # Rows are longer now by their FIM tokens: each is read from its own beginning, and its end is cut off
        longer_R = len(self.fim_tokens) * np.bincount(starts_D[chosen_D] // width, minlength=height)
        begins_R = np.arange(height) * width + np.cumsum(longer_R) - longer_R
        tokens = np.concatenate((rows_RW.ravel(), np.array(self.fim_tokens, np.int64)))
        served_RW = tokens[order[begins_R[:, None] + np.arange(width)]]
        return Batch(served_RW[:, :-1], served_RW[:, 1:])

    def _draw(self, samples_D: Int64) -> Float64:
        """(DRAWS, D) numbers in [0, 1): the outputs of one SplitMix64 per sample, in the order of its documents.

        SplitMix64 mixes a counter, so that any output can be computed without the previous ones.
        """
        numbers_D = np.arange(len(samples_D)) - np.searchsorted(samples_D, samples_D)
        counters: UInt64 = (DRAWS * numbers_D + np.arange(1, DRAWS + 1)[:, None]).astype(np.uint64)
        seeds_D = mix(samples_D.astype(np.uint64) + self._key)
        return (mix(seeds_D + counters * GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _joined(begins: Int64, lengths: Int64) -> Int64:
    """Concatenated ranges: `lengths[i]` numbers from `begins[i]` on, for each i."""
    after = np.cumsum(lengths)
    return np.repeat(begins - after + lengths, lengths) + np.arange(after[-1])
