"""Which matrices of a file have another type than its name says, because blocks don't divide their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tasks.export.formats.gguf.file import nominal_type
from tasks.export.formats.gguf.kinds import GgufKind
from tasks.export.formats.gguf.quantize import block_of, fitting
from tasks.export.formats.gguf.tensors import OUTPUT


def stand_ins(shapes: Mapping[str, tuple[int, ...]], kind: GgufKind, layers: int) -> str | None:
    """Says which types stand in for how many of a file's matrices, and why. `shapes` is by llama.cpp's names. None if
    no type stands in."""
    matrices = {name: shape for name, shape in shapes.items() if len(shape) > 1}
    counts: Counter[str] = Counter()
    widths: dict[int, set[int]] = {}  # by the size of the block that doesn't divide them
    for name, shape in matrices.items():
        nominal = nominal_type(name, shape, kind, layers, tied=OUTPUT not in shapes)
        actual = fitting(nominal, shape[-1])
        if actual != nominal:
            counts[actual.lower()] += 1
            widths.setdefault(block_of(nominal), set()).add(shape[-1])
    if not counts:
        return None
    (first, most), *others = counts.most_common()
    parts = [f"{most:,} of {len(matrices):,} matrices in {first}", *(f"{count:,} in {one}" for one, count in others)]
    reasons = [
        _reason(sorted(of_block), block)
        for block, of_block in sorted(widths.items(), reverse=True)
        if not any(smaller < block and of_block <= widths[smaller] for smaller in widths)  # implied by the smaller
    ]
    return f"{', '.join(parts)}, as {' and '.join(reasons)}"


def _reason(widths: list[int], block: int) -> str:
    named = " and ".join(f"{width:,}" for width in widths)
    return (
        f"the width {named} isn't a multiple of {block}"
        if len(widths) == 1
        else (f"the widths {named} aren't multiples of {block}")
    )
