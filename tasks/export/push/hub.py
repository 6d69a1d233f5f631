"""Pushes a release to a model repository of the Hugging Face hub, private unless requested otherwise.

The token comes from the environment (HF_TOKEN) or from `hf auth login`. The hub reports a digest of every file,
SHA-256 for large ones and Git's for small ones, so that the upload is checked without a download.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from storage.errors import ConfigError, DamagedArtifact, StoreError
from storage.manifest import SUMS
from tasks.export.push.address import HUB
from tasks.export.push.outgoing import Outgoing
from tasks.export.release_folder import OF_A_HUB, few

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SCHEME = f"{HUB}://"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def repository(url: str) -> str:
    """The repository that a URL names. Raises ConfigError for a URL of another form."""
    name = url.removeprefix(SCHEME)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{url} isn't the name of a repository of the hub.", "Write hf://OWNER/NAME.")
    return name


def push_to_hub(outgoing: Outgoing, url: str, *, public: bool = False) -> None:
    """Create the repository if it doesn't exist, and make one commit with all files. Raises ConfigError for a bad URL,
    StoreError for a repository with other files or one that is public without a request for that, and DamagedArtifact
    if other bytes arrived."""
    from huggingface_hub import HfApi

    api, name = HfApi(), repository(url)
    with _asking(url):
        if api.repo_exists(name):
            _check_there(api, name, outgoing, public)
        else:
            api.create_repo(name, private=not public)
        api.upload_folder(
            repo_id=name,
            folder_path=outgoing.folder,
            allow_patterns=[_plain(one) for one in outgoing.digests],
            commit_message="A release by Gristmill",
        )
        there = _files(api, name)
    wrong = [one for one in outgoing.digests if one not in there or not _same(there[one], outgoing, one)]
    if wrong:
        raise DamagedArtifact(f"{url} received other bytes than were sent: {few(wrong)}.", "Push it again.")


def _check_there(api: HfApi, name: str, outgoing: Outgoing, public: bool) -> None:
    if not public and not api.model_info(name).private:
        raise StoreError(f"{name} is public.", "Add --public if that is intended, or name another repository.")
    there = _files(api, name)
    if SUMS in there and not _same(there[SUMS], outgoing, SUMS):
        raise StoreError(f"{name} holds another release.", "Name another repository.")
    ours = {one for one in there.keys() & outgoing.digests.keys() if SUMS in there or _same(there[one], outgoing, one)}
    if strange := sorted(name for name in there.keys() - ours if not OF_A_HUB.fullmatch(name)):
        raise StoreError(f"{name} holds other files: {few(strange)}.", "Name a repository of its own.")


def _files(api: HfApi, name: str) -> dict[str, Any]:
    return {one.path: one for one in api.list_repo_tree(name, recursive=True) if hasattr(one, "blob_id")}


def _same(there: Any, outgoing: Outgoing, name: str) -> bool:
    """Whether the hub's digest of a file equals ours, and our file hasn't changed since it was searched."""
    if there.lfs is not None:
        return bool(there.lfs.sha256 == outgoing.digests[name])
    data = (outgoing.folder / name).read_bytes()
    as_git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return bool(there.blob_id == as_git) and hashlib.sha256(data).hexdigest() == outgoing.digests[name]


def _plain(name: str) -> str:
    """A name as a pattern that matches only that name."""
    return re.sub(r"([*?\[])", r"[\1]", name)


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Within the block, any error of the client becomes a StoreError. It raises its own errors, those of its HTTP
    library (which differs by version, so it is taken from their base class), those of the disk, and plain ones for odd
    answers and uploads."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    client = cast("type[Exception]", HfHubHTTPError.__bases__[0])
    try:
        yield
    except (HfHubHTTPError, HFValidationError, client, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise StoreError(
            f"The hub refused {url}: {reason.rstrip('.')}.",
            "Check the name, the network, and HF_TOKEN, which needs write permission.",
        ) from error
