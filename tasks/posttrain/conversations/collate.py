"""Rows of conversations as the tensors of a micro-batch.

In a packed row the positions begin anew with each conversation. From these alone transformers tells where one ends, and
only without an attention mask and without a cache: with either it takes a row for one text, and says nothing
(masking_utils.find_packed_sequence_indices). So a packed batch has no mask, and what pads a row is one more
conversation, of which nothing bears loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from models.kernels.cross_entropy import IGNORED
from tasks.posttrain.conversations.layout import MicroBatch, Row

Conversation = dict[str, Any]  # input_ids, labels, and its place in the order of training
SEGMENTS = "segments"  # of each row, the places and lengths of its conversations


class Rows(Dataset[list[Conversation]]):
    """The conversations of rows, of a data set in the order of training."""

    def __init__(self, conversations: Any) -> None:
        self.conversations = conversations

    def __getitem__(self, row: Row) -> list[Conversation]:
        return [{**self.conversations[place], "place": place} for place in row]


def loader(conversations: Any, batches: Sequence[MicroBatch], pad_id: int, *, packed: bool) -> DataLoader[Any]:
    """The micro-batches of one process, in order."""
    return DataLoader(
        Rows(conversations), batch_sampler=batches, collate_fn=lambda rows: collate(rows, pad_id, packed=packed)
    )


def collate(rows: Sequence[Sequence[Conversation]], pad_id: int, *, packed: bool) -> dict[str, Any]:
    """Ids and labels (rows, tokens), with positions where rows are packed and a mask of padding where they are not."""
    lengths = [[len(conversation["input_ids"]) for conversation in row] for row in rows]
    width = max(map(sum, lengths))
    ids = torch.full((len(rows), width), pad_id)
    labels = torch.full((len(rows), width), IGNORED)
    positions, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for number, row in enumerate(rows):
        start = 0
        for conversation, length in zip(row, lengths[number], strict=True):
            within = slice(start, start + length)
            ids[number, within] = torch.tensor(conversation["input_ids"])
            labels[number, within] = torch.tensor(conversation["labels"])
            labels[number, start] = IGNORED  # nothing stands before it that could predict it
            positions[number, within] = torch.arange(length)
            mask[number, within] = 1
            start += length
        positions[number, start:] = torch.arange(width - start)
    told: dict[str, Tensor] = {"position_ids": positions} if packed else {"attention_mask": mask}
    segments = [
        [(conversation["place"], length) for conversation, length in zip(row, lengths[number], strict=True)]
        for number, row in enumerate(rows)
    ]
    return {"input_ids": ids, "labels": labels, **told, SEGMENTS: segments}
