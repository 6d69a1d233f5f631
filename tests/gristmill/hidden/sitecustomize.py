"""On the path of a process, hides what only the extras bring, as if it were not installed; in what it starts, too."""

import importlib.machinery
import sys

HIDDEN = {
    "accelerate", "bitsandbytes", "compressed_tensors", "deepspeed", "fastwarc", "gguf", "immutabledict",
    "langdetect", "lm_eval", "loguru", "lxml", "mwparserfromhell", "nltk", "onnx", "onnxruntime", "onnxscript", "peft",
    "py7zr", "pypdfium2",
    "resiliparse", "safetensors", "torch", "torchao", "trafilatura", "transformers", "trl", "vl_convert",
    "xllamacpp",
}  # fmt: skip


class Finder(importlib.machinery.PathFinder):
    """The usual finder, for everything else."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """None for what is hidden."""
        if fullname.partition(".")[0] in HIDDEN:
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, path, target)


if __name__ == "sitecustomize":  # a test reads the list, and hides nothing
    sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
