"""Which matrices of a file are of another type than its name says, as blocks don't divide their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tasks.export.formats.gguf.file import wanted_type
from tasks.export.formats.gguf.kinds import GgufKind
from tasks.export.formats.gguf.quantize import block_of, fitting
from tasks.export.formats.gguf.tensors import OUTPUT


def stand_ins(shapes: Mapping[str, tuple[int, ...]], kind: GgufKind, layers: int) -> str | None:
    """What stands in for how many of a file's matrices, and why, by llama.cpp's names and shapes; None for nothing."""
    matrices = {name: shape for name, shape in shapes.items() if len(shape) == 2}
    taken: Counter[str] = Counter()
    widths: dict[int, set[int]] = {}  # by the size of the block that does not divide them
    for name, shape in matrices.items():
        wanted = wanted_type(name, shape, kind, layers, tied=OUTPUT not in shapes)
        found = fitting(wanted, shape[-1])
        if found != wanted:
            taken[found.lower()] += 1
            widths.setdefault(block_of(wanted), set()).add(shape[-1])
    if not taken:
        return None
    (first, most), *others = taken.most_common()
    parts = [f"{most:,} of {len(matrices):,} matrices in {first}", *(f"{count:,} in {one}" for one, count in others)]
    reasons = [
        _reason(sorted(found), block)
        for block, found in sorted(widths.items(), reverse=True)
        if not any(smaller < block and found <= widths[smaller] for smaller in widths)  # which says more
    ]
    return f"{', '.join(parts)}, as {' and '.join(reasons)}"


def _reason(widths: list[int], block: int) -> str:
    named = " and ".join(f"{width:,}" for width in widths)
    return (
        f"the width {named} is no multiple of {block}"
        if len(widths) == 1
        else (f"the widths {named} are no multiples of {block}")
    )
