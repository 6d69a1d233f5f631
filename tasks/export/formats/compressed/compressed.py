"""Weights of 4 or 8 bits in the layout of compressed-tensors, for vLLM and for transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.shards.arrays import Float32
from tasks.export.formats.format import Format, missing
from tasks.export.formats.source import Source
from tasks.export.tolerance import EIGHT_BIT_ACTIVATIONS, FOUR_BIT, FOUR_BIT_PLAIN, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime
    from tasks.export.formats.compressed.methods import Method

_CHAT_RANKS: dict[Method, int] = {"w8a8": 20, "gptq": 21, "awq": 22, "w4a16": 23}  # all slow without a GPU


@dataclass(frozen=True)
class Compressed(Format):
    """A checkpoint whose blocks are rounded by one method: w4a16 (to nearest), gptq, awq, or w8a8. The latter also
    rounds activations dynamically, per token, and smooths them given text and an architecture with known folds."""

    method: Method
    usual: bool = False

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return 8 if self.method == "w8a8" else 4

    @property
    def calibrated(self) -> bool:
        return self.method != "w4a16"

    @property
    def needs_text(self) -> bool:
        return self.method in ("gptq", "awq")

    @property
    def tolerance(self) -> Tolerance:
        # GPTQ makes up for an error in other columns, and AWQ and smoothing take precision from columns of small
        # inputs: weights are farther off, and outputs nearer. A row of zeros has error 1, one of the wrong sign 2
        if not self.calibrated:
            return FOUR_BIT_PLAIN
        usual = EIGHT_BIT_ACTIVATIONS if self.bits == 8 else FOUR_BIT
        return usual.model_copy(update={"max_weight_error": 0.8})

    @property
    def chat_rank(self) -> int:
        return _CHAT_RANKS[self.method]

    @property
    def loading(self) -> str:
        return (
            f"`vllm serve {self.method}`, or with compressed-tensors "
            f'`AutoModelForCausalLM.from_pretrained("{self.method}")`'
        )

    def needs(self) -> str | None:
        return missing("compressed_tensors", "loguru")

    def path(self, release: Path) -> Path:
        return release / self.method

    def check(self, model: Path) -> None:
        from models.pretrained import empty_model
        from tasks.export.formats.compressed.folds import folds_of
        from tasks.export.formats.compressed.layers import find_blocks, groups_of

        empty = empty_model(model)
        groups_of(find_blocks(empty).widths(), self.bits)
        if self.method == "awq":
            folds_of(empty.config.model_type)

    def write(self, source: Source, release: Path) -> None:
        """Memory holds the model in float32, its rounded layers, and the data that calibration.py names."""
        from models.pretrained import load_pretrained
        from tasks.export.formats.compressed.checkpoint import write_checkpoint
        from tasks.export.formats.compressed.layers import find_blocks, groups_of
        from tasks.export.formats.compressed.methods import round_model

        self.check(source.folder)
        model = load_pretrained(source.folder).eval()
        blocks = find_blocks(model)
        groups = groups_of(blocks.widths(), self.bits)
        layers = round_model(model, blocks, groups, self.method, source)
        changed = model.state_dict() if self._folds(model.config.model_type) else {}
        write_checkpoint(source.folder, self.path(release), layers, blocks.outside, changed)

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        from models.runtimes.transformers import TransformersRuntime
        from tasks.export.formats.compressed.checkpoint import require_whole

        require_whole(self.path(release))  # transformers would fill in missing tensors with random ones
        return TransformersRuntime(self.path(release), device)

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        from models.pretrained import load_config
        from tasks.export.formats.compressed.checkpoint import dense_tensors, require_whole
        from tasks.export.formats.compressed.unfold_scales import unfolded_tensors

        folder = self.path(release)
        require_whole(folder)
        kind = load_config(model).model_type
        tensors = unfolded_tensors(model, folder, kind, self.bits) if self._folds(kind) else dense_tensors(folder)
        for name, value in tensors:
            yield name, value.numpy()

    def _folds(self, kind: str) -> bool:
        """Whether this method folds factors into other layers of an architecture."""
        from tasks.export.formats.compressed.folds import FOLDS

        return self.method in ("awq", "w8a8") and kind in FOLDS
