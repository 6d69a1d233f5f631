"""A small tokenizer, trained as the stage does, for doors that read one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from storage.artifact import Artifact
from storage.shards.documents import Document, shard_name, write_documents
from tasks.stage.output import Output
from tasks.tokenizer import TokenizerConfig, train_tokenizer
from tests.runtimes import runtime_of

CONFIG = TokenizerConfig(vocab_size=300)


def make_tokenizer(target: Path) -> None:
    """Write the files of a tokenizer that fits CONFIG."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = [f"A text of {number} words, é and more." * 3 for number in range(60)]
        write_documents(folder / "in" / shard_name(0), (Document.new(text, "a") for text in texts))
        out = Output.at(folder, stage="tokenizer", runtime=runtime_of(workers=1))
        train_tokenizer.function(CONFIG, Artifact.at(folder / "in"), out)
        for path in out.path.iterdir():
            if path.is_file():
                shutil.copyfile(path, target / path.name)
