"""Download: everything from outside comes in here, once, with an id, a source and a record of what was refused."""

from tasks.download.config import DownloadConfig
from tasks.download.stage import download

__all__ = ["DownloadConfig", "download"]
