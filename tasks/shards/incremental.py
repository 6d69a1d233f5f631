"""Shards that an earlier artifact of the stage holds are taken from it: one more shard costs its own work and no more.

For work whose result hangs on one shard, the config, and inputs that can be named. The artifact then carries
shards.json: the name of the work, and for each input shard its SHA-256 and what was counted. A later run of the stage
finds there the shards with the same SHA-256, and links their files under their new numbers.

What is taken is what would have been made, or an artifact's digest would tell its history (law 4). So stage, version,
config, source code and the named inputs must be the same (see `Output.earlier`), the work too, and each file must still
have the SHA-256 of its manifest. One that has not is no error: its shard is worked through anew, and a note says so.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.digests import file_digest
from storage.errors import DamagedArtifact
from tasks.shards.seam import map_shards
from tasks.shards.shard import ShardResult
from tasks.stage.output import Output

RECORD = "shards.json"
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)  # another file system, owner, too many, or never

Work = Callable[[Path, Path], dict[str, Any]]


@dataclass(frozen=True)
class Made:
    """A shard as an earlier artifact has it: what was counted, and of each file its place and its SHA-256."""

    location: str
    counts: dict[str, Any]
    files: dict[str, tuple[Path, str]]


Job = tuple[Path, Made | None]


def map_new_shards(
    work: Work,
    documents: Artifact,
    out: Output,
    name: str,
    *,
    files: Sequence[str],
    same: Sequence[str],
    releases_gil: bool = False,
) -> list[ShardResult]:
    """`map_shards` of `work` on the Parquet shards of `documents`, without those that an earlier artifact holds.

    `files` are what `work` may leave in a shard's folder, each collected in the artifact by its stem: train.tokens as
    train/NNNNN.tokens. `same` names the other inputs that a shard's result hangs on. Writes shards.json.
    """
    shards = documents.names("*.parquet")
    digests = [documents.file_digest(documents.folder / shard) for shard in shards]
    known = _made_before(out.earlier(*same), {*digests}, name, files, out)
    jobs: list[Job] = [
        (documents.folder / shard, known.get(digest)) for shard, digest in zip(shards, digests, strict=True)
    ]
    documents.bring(shard for shard, (_, made) in zip(shards, jobs, strict=True) if made is None)
    results = map_shards(partial(_take_or_work, work), jobs, out, name, releases_gil=releases_gil)
    _tell(results, out)
    made = [ShardResult(result.folder, result.counts["counts"]) for result in results]
    rows = [{"sha256": digest, "counts": result.counts} for digest, result in zip(digests, made, strict=True)]
    record = json.dumps({"work": name, "shards": rows}, sort_keys=True, separators=(",", ":"))
    (out.path / RECORD).write_text(record + "\n")
    return made


def _made_before(
    earlier: Artifact | None, wanted: Collection[str], name: str, files: Sequence[str], out: Output
) -> dict[str, Made]:
    """The shards of an earlier artifact that were made of what has one of the `wanted` SHA-256, by that, if the same
    work made them."""
    if earlier is None or earlier.manifest is None or RECORD not in earlier.manifest.files:
        return {}
    try:
        text = earlier.file(RECORD).read_bytes()
    except DamagedArtifact as error:
        out.warn(f"nothing is taken from {earlier.location}: {error.message}")
        return {}
    if hashlib.sha256(text).hexdigest() != earlier.manifest.files[RECORD].sha256:
        out.warn(f"{earlier.location}/{RECORD} has changed bytes: nothing is taken from there")
        return {}
    record = json.loads(text)
    if record["work"] != name:
        return {}
    known = {}
    for number, shard in enumerate(record["shards"]):
        if shard["sha256"] not in wanted:
            continue
        places = {file: f"{Path(file).stem}/{number:05d}{Path(file).suffix}" for file in files}
        try:
            earlier.bring(place for place in places.values() if place in earlier.manifest.files)
        except DamagedArtifact as error:
            out.warn(f"can't be taken: {error.message}")
            continue
        listed = {
            file: (earlier.folder / place, earlier.manifest.files[place].sha256)
            for file, place in places.items()
            if place in earlier.manifest.files
        }
        known[shard["sha256"]] = Made(earlier.location, shard["counts"], listed)
    return known


def _take_or_work(work: Work, job: Job, folder: Path) -> dict[str, Any]:
    shard, made = job
    if made is None:
        return {"counts": work(shard, folder)}
    damaged = _take(made, folder)
    if damaged:
        return {"counts": work(shard, folder), "damaged": damaged}
    return {"counts": made.counts, "taken": made.location}


def _take(made: Made, folder: Path) -> str:
    """Link the files of a shard into `folder`; the name of one that is not as it was, and none is linked then."""
    for file, (path, sha256) in made.files.items():
        if not link_same(path, folder / file, sha256):
            for other in made.files:
                (folder / other).unlink(missing_ok=True)  # else the work would write into the earlier artifact
            return f"{made.location}/{path.parent.name}/{path.name}"
    return ""


def link_same(path: Path, target: Path, sha256: str) -> bool:
    """As `link`, of a file that must have this SHA-256; nothing is left of one that has not."""
    # Linked first: what is hashed is then what is kept, though the earlier artifact be collected meanwhile
    if link(path, target) and file_digest(target) == sha256:
        return True
    target.unlink(missing_ok=True)
    return False


def link(path: Path, target: Path) -> bool:
    """Link a file, or copy it where that can't be, to a place where none is; whether it is there at all."""
    try:
        os.link(path, target)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        shutil.copyfile(path, target)
    return True


def _tell(results: Sequence[ShardResult], out: Output) -> None:
    taken = Counter(result.counts["taken"] for result in results if "taken" in result.counts)
    for location, count in taken.items():
        out.note(f"{count} of {len(results)} shards taken from {location}")
    damaged = [result.counts["damaged"] for result in results if "damaged" in result.counts]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        out.warn(f"{damaged[0]}{more} can't be taken, missing or with changed bytes: made anew")
    out.fact(shards_reused=taken.total())
