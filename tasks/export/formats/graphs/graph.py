"""The base of graph formats: a folder of the release, files next to the graph, and the models that they hold."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.errors import ConfigError
from tasks.export.formats.format import Format
from tasks.export.formats.tokenizer import write_tokenizer

CONFIGS = ("config.json", "generation_config.json")


class GraphFormat(Format):
    """One step of the decoder in a folder of the release, with config, tokenizer and chat template."""

    usual = False
    askable = False

    @property
    def folder(self) -> str:
        """The folder's name in a release."""
        raise NotImplementedError

    def path(self, release: Path) -> Path:
        return release / self.folder

    def check(self, model: Path) -> None:
        from models.pretrained import load_config
        from tasks.export.formats.graphs.models import why_not

        reason = why_not(load_config(model))
        if reason:
            raise ConfigError(
                f"This model can't be traced as a graph: {reason}.", f"Leave {self.folder} out of export.formats."
            )


def copy_companions(model: Path, folder: Path) -> None:
    """Put a model's config, generation config, tokenizer and chat template into a new folder. A missing generation
    config, which says where an answer ends, is derived from the config."""
    from transformers import GenerationConfig

    from models.pretrained import load_config

    folder.mkdir(parents=True)
    write_tokenizer(model, folder)
    for name in CONFIGS:
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)
    if not (folder / CONFIGS[1]).is_file():
        GenerationConfig.from_model_config(load_config(model)).save_pretrained(folder)
