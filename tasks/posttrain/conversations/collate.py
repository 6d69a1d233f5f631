"""Rows of conversations as the tensors of a micro-batch.

In a packed row, positions restart at 0 with each conversation. transformers finds the boundaries from the positions
only if it gets neither an attention mask nor a cache: with either, it silently treats the row as one text
(masking_utils.find_packed_sequence_indices). So a packed batch comes without a mask, and the padding of a row is one
more conversation, without loss.
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
SEGMENTS = "segments"  # for each row, the places and lengths of its conversations


class Rows(Dataset[list[Conversation]]):
    """The conversations of each row, from a data set in the order of training."""

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
    """Ids and labels (rows, tokens), with positions if rows are packed, else with a mask of padding."""
    lengths = [[len(conversation["input_ids"]) for conversation in row] for row in rows]
    width = max(map(sum, lengths))
    ids = torch.full((len(rows), width), pad_id)
    labels = torch.full((len(rows), width), IGNORED)
    positions, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for number, row in enumerate(rows):
        start = 0
        for conversation, length in zip(row, lengths[number], strict=True):
            span = slice(start, start + length)
            ids[number, span] = torch.tensor(conversation["input_ids"])
            labels[number, span] = torch.tensor(conversation["labels"])
            labels[number, start] = IGNORED  # else the end of the conversation before would predict it
            positions[number, span] = torch.arange(length)
            mask[number, span] = 1
            start += length
        positions[number, start:] = torch.arange(width - start)
    boundaries: dict[str, Tensor] = {"position_ids": positions} if packed else {"attention_mask": mask}
    segments = [
        [(conversation["place"], length) for conversation, length in zip(row, lengths[number], strict=True)]
        for number, row in enumerate(rows)
    ]
    return {"input_ids": ids, "labels": labels, **boundaries, SEGMENTS: segments}
