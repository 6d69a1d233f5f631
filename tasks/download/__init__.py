"""The `download` stage: all external data enters here, once, with an id, a source and a record of rejected rows."""

from tasks.download.config import DownloadConfig
from tasks.download.stage import download

__all__ = ["DownloadConfig", "download"]
