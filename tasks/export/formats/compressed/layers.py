"""Which layers of a model are quantized, and in groups of how many columns.

The linear layers of the decoder's blocks are quantized. Embeddings, norms and the output layer stay as they are. The
blocks are found in the model as transformers builds it, so an architecture needs no entry here. A block's matrices must
belong to `torch.nn.Linear`, as compressed-tensors replaces nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError
from tasks.export.formats.compressed.packing import PER_WORD

if TYPE_CHECKING:
    from torch import nn

GROUPS = (128, 64, 32)  # columns that share a scale, best first: those of vLLM's kernels, besides whole rows
_ELSE = "Leave w4a16, gptq, awq and w8a8 out of export.formats."


@dataclass(frozen=True)
class Blocks:
    """The decoder's blocks, and their linear layers by name within a block."""

    prefix: str  # of the list of blocks in the checkpoint, such as model.layers
    modules: Sequence[nn.Module]
    outside: Sequence[str]  # linear layers outside the blocks, such as lm_head, which stay as they are

    def linears(self, number: int) -> dict[str, nn.Linear]:
        """The linear layers of one block, in its own order."""
        from torch import nn

        return {name: layer for name, layer in self.modules[number].named_modules() if isinstance(layer, nn.Linear)}

    def name(self, number: int, layer: str) -> str:
        """A layer's name in the checkpoint."""
        return f"{self.prefix}.{number}.{layer}"

    def widths(self) -> dict[str, int]:
        """Columns of every linear layer, by its name in the checkpoint."""
        return {
            self.name(number, name): layer.in_features
            for number in range(len(self.modules))
            for name, layer in self.linears(number).items()
        }


def find_blocks(model: Any) -> Blocks:
    """The blocks of a model. Raises ConfigError, naming the layer, for a model that compressed-tensors can't hold."""
    from torch import nn

    kind, depth = model.config.model_type, getattr(model.config, "num_hidden_layers", None)
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth
    ]
    if len(lists) != 1:
        raise ConfigError(f"A {kind} model doesn't have exactly one list of {depth} blocks.", _ELSE)
    prefix, modules = lists[0]
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    blocks = Blocks(prefix, list(modules), [name for name in linears if not name.startswith(f"{prefix}.")])
    for name, layer in _other_products(blocks):
        raise ConfigError(
            f"{name} of this {kind} model is a {layer}, and compressed-tensors only quantizes torch.nn.Linear.", _ELSE
        )
    return blocks


def groups_of(widths: Mapping[str, int], bits: int) -> dict[str, int]:
    """Columns that share a scale, by layer: at 8 bits the whole row, at 4 bits the largest of 128, 64 and 32 that
    divides the width, or else the whole row. Raises ConfigError for a width that doesn't fill words of eight codes."""
    if bits == 8:
        return dict(widths)
    for name, width in widths.items():
        if width % PER_WORD:
            raise ConfigError(
                f"{name} has {width:,} columns, and vLLM reads 4-bit codes in words of {PER_WORD}.",
                "Leave w4a16, gptq and awq out of export.formats, or train with widths that are multiples of 32.",
            )
    return {name: next((group for group in GROUPS if width % group == 0), width) for name, width in widths.items()}


def targets_of(values: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    """(value, targets of a config group) for each distinct value of the layers, as compressed-tensors and vLLM find
    layers: by class if all share one value, else by a pattern of last names if these decide, else by full names."""
    distinct = list(dict.fromkeys(values.values()))
    if len(distinct) == 1:
        return [(distinct[0], ["Linear"])]
    by_last: dict[str, set[Any]] = {}
    for name, value in values.items():
        by_last.setdefault(name.rpartition(".")[2], set()).add(value)
    targets = []
    for value in distinct:
        patterns = [f"re:.*\\.{re.escape(last)}$" for last, ones in by_last.items() if ones == {value}]
        clear = {last for last, ones in by_last.items() if len(ones) == 1}
        names = [name for name, one in values.items() if one == value and name.rpartition(".")[2] not in clear]
        targets.append((value, [*patterns, *names]))
    return targets


def _other_products(blocks: Blocks) -> Iterator[tuple[str, str]]:
    """(name, class) of modules in the blocks that have a matrix but aren't linear: GPT-2's Conv1D, experts."""
    from torch import nn

    for number, block in enumerate(blocks.modules):
        for name, module in block.named_modules():
            matrices = [value for value in module.parameters(recurse=False) if value.ndim > 1]
            if matrices and not isinstance(module, nn.Linear):
                yield blocks.name(number, name), type(module).__name__
