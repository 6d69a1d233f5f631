"""The `export` stage: a release in the profile's formats, each proved in the runtime that it is for.

config.py     which formats, and how each is proved
tolerance.py  how far a format may differ from the checkpoint
formats/      the formats, one file each
stage.py      the stage: runs the child, writes the model card
run.py        the child: writes each format, opens it again, compares
proof/        token ids, log-probabilities, greedy text and perplexity against the checkpoint
card/         the model card, licences, Ollama's Modelfile
dtype.py      the dtype of the plain weights
release.py    finds a release in a store, opens one for chat
release_folder.py  a release outside the store: saved, signed, checked
signature.py  signatures by SSH keys
push/         pushes a saved release to a hub, a bucket or a folder
"""

from tasks.export.config import BEST, HOLD_VIRTUAL, ExportConfig
from tasks.export.stage import check_formats, export

__all__ = ["BEST", "HOLD_VIRTUAL", "ExportConfig", "check_formats", "export"]
