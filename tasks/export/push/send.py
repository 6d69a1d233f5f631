"""Sends a release to its address: a repository of the hub, a bucket, a server or a folder."""

from __future__ import annotations

from pathlib import Path

from storage.files.remote import opened
from tasks.export.push.address import HERE, HUB, SERVERS
from tasks.export.push.bucket import Bucket
from tasks.export.push.folder import Folder
from tasks.export.push.hub import push_to_hub
from tasks.export.push.outgoing import Outgoing
from tasks.export.push.steps import Place, push_to


def send(outgoing: Outgoing, scheme: str, url: str, public: bool) -> None:
    """Copy a release to an address as `address` parts it. Raises StoreError, ConfigError."""
    if scheme == HUB:
        push_to_hub(outgoing, url, public=public)
    else:
        push_to(place(outgoing, scheme, url), outgoing)


def place(outgoing: Outgoing, scheme: str, url: str) -> Place:
    """The destination, if it isn't the hub. Raises StoreError for one that can't take a release."""
    if scheme in ("", *HERE):
        return Folder(Path(url.removeprefix(f"{scheme}://") if scheme else url).expanduser(), url, outgoing.folder)
    fs, root = opened(url, "The address", "Install fsspec's package for it, or give another address.")
    return Bucket(fs, root, url, folders=scheme in SERVERS)
