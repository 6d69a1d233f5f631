"""The `export` stage: a release in the formats of the profile, each proved in the runtime that it is for.

config.py     which formats, and how each is proved
tolerance.py  how far a format may be from the checkpoint
formats/      the formats, one file each
stage.py      the stage: runs the child, writes the model card
run.py        the child: writes each format, opens it again, compares
proof/        token ids, log-probabilities, greedy text and perplexity against the checkpoint
card/         the model card, licences, Ollama's Modelfile
dtype.py      what the plain weights are stored in
release.py    finds a release in a store, opens one for chat
release_folder.py      a release outside the store: saved, signed, checked
signature.py  signatures by SSH keys
push/         a saved release goes to a hub, a bucket or a folder
"""

from tasks.export.config import BEST, ExportConfig
from tasks.export.stage import check_formats, export

__all__ = ["BEST", "ExportConfig", "check_formats", "export"]
