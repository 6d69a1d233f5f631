"""The adapter as PEFT loads it, over the user's copy of the base."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from models.kernels.virtual_tokens import FOLDER
from storage.errors import ConfigError, StoreError
from storage.shards.arrays import Float32
from tasks.export.formats.companion_files import companion_settings
from tasks.export.formats.format import Format
from tasks.export.formats.source import Adapted, Source
from tasks.export.formats.tokenizer import write_tokenizer
from tasks.export.tolerance import FLOAT_GRAPH, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime

_ON_A_HUB = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})")


@dataclass(frozen=True)
class OverBase(Format):
    """Base of the adapter formats, which are read and proved over the base that they were trained on."""

    adapted: Adapted | None = None
    usual: bool = False
    chat_rank: int = 99

    @property
    def needs_base(self) -> bool:
        return True

    def over(self, adapted: Adapted | None) -> Self:
        return replace(self, adapted=adapted)

    def given(self, source: Source) -> Adapted:
        """The base and its adapters. Raises ConfigError for a model without them."""
        if source.adapted is None:
            raise ConfigError(
                "This model comes without its base and adapters.", "Leave adapter and gguf-adapter out of the formats."
            )
        return source.adapted

    @property
    def opened_over(self) -> Adapted:
        """The base and its adapters. Raises StoreError for an adapter opened without them."""
        if self.adapted is None:
            raise StoreError(
                "An adapter isn't a whole model: it needs its base.",
                "Load it over the base as the model card says, or export another format as well.",
            )
        return self.adapted


@dataclass(frozen=True)
class Adapter(OverBase):
    """A folder of PEFT, with the tokenizer and the chat template that the adapter was trained with."""

    tolerance: Tolerance = FLOAT_GRAPH  # the checkpoint's products were rounded when they were added
    loading: str = '`AutoPeftModelForCausalLM.from_pretrained("adapter")` with PEFT, over the base in its config'

    def path(self, release: Path) -> Path:
        return release / "adapter"

    def check(self, model: Path) -> None:
        """Holds any model."""

    def write(self, source: Source, release: Path) -> None:
        from safetensors.numpy import save_file

        from tasks.export.formats.adapter.factors import CONFIG, WEIGHTS, as_tensors, joined, read_factors, settings_of

        adapted, folder = self.given(source), self.path(release)
        folder.mkdir()
        if (source.folder / FOLDER).is_dir():  # virtual tokens
            shutil.copyfile(source.folder / FOLDER / WEIGHTS, folder / WEIGHTS)
            written = json.loads((source.folder / FOLDER / CONFIG).read_text(encoding="utf-8"))
        else:
            settings = [settings_of(one) for one in adapted.adapters]
            factors = joined([read_factors(one) for one in adapted.adapters])
            save_file(as_tensors(factors), folder / WEIGHTS, metadata={"format": "pt"})
            written, rank = settings[0], factors.rank
            if len(settings) > 1:
                targets = sorted({target for one in settings for target in one["target_modules"]})
                whole = sorted({name for one in settings for name in one["modules_to_save"] or ()})
                written |= {"r": rank, "lora_alpha": rank, "use_rslora": False, "target_modules": targets}
                written |= {"modules_to_save": whole or None}
        name, revision = hub_name(adapted.name)
        written |= {"base_model_name_or_path": name, "revision": revision}
        text = json.dumps(written, indent=2, sort_keys=True, ensure_ascii=False)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
        write_tokenizer(source.folder, folder)

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        """Opens it in float32, not merged."""
        from models.runtimes.transformers import TransformersRuntime

        return TransformersRuntime(self.opened_over.base, adapter=self.path(release))

    def settings(self, model: Path, release: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """The base that it names, and the files next to the factors."""
        from tasks.export.formats.adapter.factors import CONFIG

        folder, field = self.path(release), "base_model_name_or_path"
        actual, expected = companion_settings(folder, model)
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        name, revision = hub_name(self.opened_over.name)
        return {**actual, field: config[field], "revision": config["revision"]}, {
            **expected,
            field: name,
            "revision": revision,
        }

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        """The base's tensors with the changes added. Virtual tokens change none."""
        from tasks.export.formats.adapter.factors import LowRank, base_matrices, read_factors

        virtual = (model / FOLDER).is_dir()
        factors = LowRank(1.0, {}) if virtual else read_factors(self.path(release))
        for name, layer, values in base_matrices(self.opened_over.base, factors):
            change: Any = factors.change(layer) if layer else 0
            yield name, values + (change.T if layer and factors.transposed else change)


def hub_name(name: str) -> tuple[str, str | None]:
    """Repository and commit of a base from a hub, or the name of any other base and None."""
    match = _ON_A_HUB.fullmatch(name)
    return (match[1], match[2]) if match else (name, None)
