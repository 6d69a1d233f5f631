"""Data sets of the Hugging Face hub, at a fixed revision. Code in a data set is never executed.

Which files a configuration and a split have is for `datasets` to say, from the patterns of the data set's card or the
names of its files. Parquet files are then read where they are: by ranges, in portions, with patience. What lies in
other forms is streamed by `datasets`, row by row.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote, unquote

from storage.errors import ConfigError, SourceError
from tasks.download.config import HubSource
from tasks.download.sources.parquet import Part, open_parquet, read_parquet
from tasks.download.sources.remote import (
    LATER,
    TOKEN_REMEDY,
    Address,
    Later,
    Politeness,
    RangedFile,
    answered,
    hub,
    look,
    open_address,
)
from tasks.download.sources.rows import Refused, Row, first

if TYPE_CHECKING:
    import pyarrow.parquet as pq

ASKED_AT_ONCE = 500  # paths
WHOLE = 32 << 20  # bytes of a file up to which it may be fetched whole, and compared with its digest
SHA256 = 64  # digits
TIMES = 3  # that a file is fetched whose digest is wrong
REMEDY = "Check the name, the revision and the network, or download it and use a source of kind `files`."


def find_parquet(source: HubSource, polite: Politeness) -> list[Address] | None:
    """The files of a split in their order, each with its digest as version, or None if they aren't Parquet on the hub.
    Raises SourceError."""
    return _find_parquet(hub(), source.dataset, source.revision, source.subset, source.split, source.name, polite)


@functools.cache  # a revision doesn't change
def _find_parquet(
    endpoint: str, dataset: str, revision: str, subset: str | None, split: str, name: str, polite: Politeness
) -> list[Address] | None:
    from datasets.packaged_modules.parquet.parquet import Parquet

    builder = _builder(dataset, revision, subset, name, polite)
    found: dict[str, list[str]] = builder.config.data_files or {}
    commit = f"hf://datasets/{dataset}@{builder.hash}/"
    if not isinstance(builder, Parquet) or builder.config.columns or builder.config.filters or split not in found:
        return None
    if not all(str(file).startswith(commit) and str(file).endswith(".parquet") for file in found[split]):
        return None
    paths = [str(file).removeprefix(commit) for file in found[split]]
    known: dict[str, Address] = {}
    for begin in range(0, len(paths), ASKED_AT_ONCE):
        some = paths[begin : begin + ASKED_AT_ONCE]
        for each in _of_hub(functools.partial(_paths_info, dataset, builder.hash, some), dataset, name, polite):
            url = f"{endpoint}/datasets/{dataset}/resolve/{builder.hash}/{quote(each.path)}"
            digest = each.lfs.sha256 if each.lfs else each.blob_id
            known[each.path] = Address(url, each.lfs.size if each.lfs else each.size, digest)
    files = [known[path] for path in paths]
    parts = look(files[0].url, polite).parts  # a mirror may send only whole files, which aren't divided then
    return [each._replace(parts=parts) for each in files]


def _paths_info(dataset: str, revision: str, paths: list[str]) -> Any:
    from huggingface_hub import HfApi

    api = HfApi(hub(), token=_token())
    return api.get_paths_info(dataset, paths, revision=revision, repo_type="dataset")


def _builder(dataset: str, revision: str, subset: str | None, name: str, polite: Politeness) -> Any:
    """What `datasets` makes of a data set. Raises SourceError."""
    from datasets import load_dataset_builder

    make = functools.partial(load_dataset_builder, dataset, subset, revision=revision, token=_token())
    return _of_hub(make, dataset, name, polite)


def _token() -> str | bool:
    """The token of the environment, or False: one that is stored on the machine isn't used."""
    return os.environ.get("HF_TOKEN") or False


def _of_hub(request: Any, dataset: str, name: str, polite: Politeness) -> Any:
    """What a library gives that asks the hub, asked again while that is away or refuses. Raises SourceError."""
    import httpx
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    def ask() -> Any:
        try:
            return request()
        except (DatasetNotFoundError, OSError, ValueError, httpx.HTTPError) as error:
            causes: list[BaseException] = [error]
            while cause := causes[-1].__cause__ or causes[-1].__context__:
                causes.append(cause)
            answers = [each.response.status_code for each in causes if isinstance(each, HfHubHTTPError)]
            lost = any(isinstance(each, httpx.TransportError) for each in causes)
            offline = any(isinstance(each, OfflineModeIsEnabled) for each in causes)
            said = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
            if not offline and (lost or any(status in LATER and status != 403 for status in answers)):
                raise Later(said, answered=not lost) from error
            unknown = isinstance(error, DatasetNotFoundError)
            raise SourceError(
                f"Source {name}: the data set {dataset} can't be read: {said}.",
                f"Check the name and the revision. {TOKEN_REMEDY}" if unknown else REMEDY,
            ) from error

    return answered(ask, hub(), polite)


def read_rows(source: HubSource, polite: Politeness, folder: Path) -> Iterator[Row | Refused]:
    """The rows of a split, in order. `folder` is for files whose server sends no parts. Raises SourceError."""
    found = find_parquet(source, polite)
    if found is None:
        yield from _stream(source, polite)
        return
    rows = (row for each in found for row in read_file(each, source, polite, folder))
    yield from first(rows, source.limit)


def _stream(source: HubSource, polite: Politeness) -> Iterator[Row]:
    builder = _builder(source.dataset, source.revision, source.subset, source.name, polite)
    rows = _of_hub(
        functools.partial(builder.as_streaming_dataset, split=source.split), source.dataset, source.name, polite
    )
    if source.columns:
        raise ConfigError(
            f"Source {source.name}: columns can't be chosen of {source.dataset}, which isn't Parquet.",
            "Remove `columns` from the source.",
        )
    for number, row in enumerate(islice(rows, source.limit), 1):
        yield Row(dict(row), f"{source.dataset} row {number}")


def name_of(source: HubSource, address: Address) -> str:
    """The name of a file in places and portions: the same at each revision."""
    at_commit = address.url.partition(f"/datasets/{source.dataset}/resolve/")[2]
    return f"{source.dataset}/{unquote(at_commit.partition('/')[2])}"


def read_file(
    address: Address, source: HubSource, polite: Politeness, folder: Path, start: int = 0, end: int | None = None
) -> Iterator[Row | Refused]:
    """The rows of a file whose groups begin in the bytes from `start` to `end`. Raises SourceError."""
    name = name_of(source, address)
    part = Part(start, end, source.columns)
    served = _served(address, polite)
    if not served.parts:
        with _checked(address, lambda: open_address(served, folder, polite)) as copy:
            yield from read_parquet(Path(name), name, copy, part)
    elif end is None and source.columns is None and source.limit is None and served.size <= WHOLE:
        whole = _checked(address, lambda: io.BytesIO(RangedFile(served, polite).read()))
        yield from read_parquet(Path(name), name, whole, part)
    else:
        file = RangedFile(served, polite)
        yield from read_parquet(Path(name), name, file, part, _metadata(served, polite, name))


@functools.lru_cache(4)
def _metadata(served: Address, polite: Politeness, name: str) -> pq.FileMetaData:
    """The footer of a file, which its portions share."""
    return open_parquet(Path(name), RangedFile(served, polite)).metadata


@functools.lru_cache(4)
def _served(address: Address, polite: Politeness) -> Address:
    """The file as its server has it. Raises SourceError if that isn't the one of the list."""
    served = look(address.url, polite)
    stated = served.version.removeprefix("W/").strip('"')
    if served.size != address.size or (len(stated) == len(address.version) and stated != address.version):
        raise SourceError(
            f"{address.url} isn't the file that the hub lists: it has {served.size:,} bytes and version {stated!r}, "
            f"and should have {address.size:,} and {address.version!r}.",
            "Try again later, or check HF_ENDPOINT.",
        )
    return served


def _checked(address: Address, fetch: Callable[[], BinaryIO]) -> BinaryIO:
    """A whole file that has the digest of the hub's list: SHA-256, or git's for small ones. Raises SourceError."""
    for _ in range(TIMES):
        file = fetch()
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        digest = hashlib.sha256() if len(address.version) == SHA256 else hashlib.sha1(b"blob %d\0" % size)
        while piece := file.read(1 << 20):
            digest.update(piece)
        file.seek(0)
        if digest.hexdigest() == address.version:
            return file
        file.close()
    raise SourceError(
        f"{address.url} has other bytes than the hub lists, {TIMES} times: its digest isn't {address.version}.",
        "Try again later, or check HF_ENDPOINT.",
    )
