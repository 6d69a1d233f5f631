"""The `download` stage: all external data enters here, once, with an id, a source and a record of rejected rows."""

from tasks.download.config import DownloadConfig
from tasks.download.stage import check_first_rows, download

__all__ = ["DownloadConfig", "check_first_rows", "download"]
