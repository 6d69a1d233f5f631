"""Takes shards from an earlier artifact of the stage that has them: one more shard costs only its own work.

For work whose result depends only on one shard of documents, the config, and the other inputs. The artifact then has a
shards.json: the name of the work, and for each input shard its SHA-256 and its counts. A later run of the stage finds
there the shards with the same SHA-256, and links their files under their new numbers.

A shard that is taken must equal the one that would be made, or an artifact's digest would depend on its history
(law 4). So stage, version, config, source code, libraries and all inputs except the documents must be the same (see
`Output.earlier`), the work too, and each file must still have the SHA-256 of its manifest. If a file doesn't, its shard
is processed again, and a warning says so.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from storage.artifact import Artifact
from storage.digests import file_digest
from storage.errors import DamagedArtifact
from tasks.shards.map_shards import map_shards
from tasks.shards.shard import ShardResult
from tasks.stage.output import Output

RECORD = "shards.json"
DOCUMENTS, SHARDS = "documents", "*.parquet"  # the input that grows, and its shards
LOOKED_AT = 8  # earlier artifacts to search: if several corpora take turns, the newest may be of another one
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)  # another file system, owner, too many, or never

Work = Callable[[Path, Path], dict[str, Any]]


class MadeFile(NamedTuple):
    """A file of an earlier artifact: its place, its SHA-256, and its name for people."""

    path: Path
    sha256: str
    name: str


@dataclass(frozen=True)
class Made:
    """A shard of an earlier artifact: its counts, and the files that the work left."""

    location: str
    counts: dict[str, Any]
    files: dict[str, MadeFile]


Job = tuple[Path, Made | None]


def map_new_shards(
    work: Work,
    documents: Artifact,
    out: Output,
    name: str,
    *,
    files: Mapping[str, str],
    releases_gil: bool = False,
    accelerators: int = 0,
    isolated: bool = False,
) -> list[ShardResult]:
    """`map_shards` of `work` on the Parquet shards of `documents` that no earlier artifact has.

    `files` maps each file that `work` may leave in a shard's folder to the folder of the artifact that collects it
    under the shard's number. Writes shards.json.
    """
    jobs: list[Job] = list(
        zip(
            (documents.folder / shard for shard in documents.names(SHARDS)),
            made_before(documents, out, name, files, [DOCUMENTS]),
            strict=True,
        )
    )
    documents.bring(path.name for path, made in jobs if made is None)
    results = map_shards(
        partial(_take_or_work, work),
        jobs,
        out,
        name,
        releases_gil=releases_gil,
        accelerators=accelerators,
        isolated=isolated,
    )
    _tell(results, out)
    made = [ShardResult(result.folder, result.counts["counts"]) for result in results]
    record_shards(documents, made, out, name)
    return made


def made_before(
    documents: Artifact, out: Output, name: str, files: Mapping[str, str], changing: Collection[str]
) -> list[Made | None]:
    """For each shard of `documents`, the result that an earlier artifact has of the work of this `name`, whatever its
    `changing` inputs were (see `Output.earlier`), or None for a new one."""
    looked_at = list(islice(out.earlier(lambda name: name in changing), LOOKED_AT))
    if not looked_at:  # the files of a plain folder would be hashed for nothing
        return [None] * len(documents.names(SHARDS))
    wanted = _digests(documents)
    known: dict[str, Made] = {}
    for earlier in looked_at:
        known |= _made_in(earlier, {*wanted} - known.keys(), name, files, out)
        if len(known) == len({*wanted}):
            break
    return [known.get(digest) for digest in wanted]


def record_shards(documents: Artifact, made: Sequence[ShardResult], out: Output, name: str) -> None:
    """Write shards.json, in which later artifacts look up the shards of this one."""
    rows = [
        {"sha256": digest, "counts": result.counts} for digest, result in zip(_digests(documents), made, strict=True)
    ]
    record = json.dumps({"work": name, "shards": rows}, sort_keys=True, separators=(",", ":"))
    (out.path / RECORD).write_text(record + "\n")


def _digests(documents: Artifact) -> list[str]:
    return [documents.file_digest(documents.folder / shard) for shard in documents.names(SHARDS)]


def _made_in(
    earlier: Artifact, wanted: Collection[str], name: str, files: Mapping[str, str], out: Output
) -> dict[str, Made]:
    """The shards of an earlier artifact whose input shard has one of the `wanted` SHA-256, by that. Empty if other work
    made them."""
    if earlier.manifest is None or RECORD not in earlier.manifest.files:
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
        places = {
            file: (Path(folder) / f"{number:05d}{Path(file).suffix}").as_posix() for file, folder in files.items()
        }
        try:
            earlier.bring(place for place in places.values() if place in earlier.manifest.files)
        except DamagedArtifact as error:
            out.warn(f"can't be taken: {error.message}")
            continue
        listed = {
            file: MadeFile(earlier.folder / place, earlier.manifest.files[place].sha256, f"{earlier.location}/{place}")
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
    """Link the files of a shard into `folder`. If one has changed, link none and return its name."""
    for file, earlier in made.files.items():
        if not link_same(earlier, folder / file):
            for other in made.files:
                (folder / other).unlink(missing_ok=True)  # otherwise the work would write into the earlier artifact
            return earlier.name
    return ""


def link_same(made: MadeFile, target: Path) -> bool:
    """As `link`, for a file that must still be as it was made. A changed one leaves nothing."""
    # Linked first: the hashed file is then the kept one, even if the earlier artifact is collected meanwhile
    if link(made.path, target) and file_digest(target) == made.sha256:
        return True
    target.unlink(missing_ok=True)
    return False


def link(path: Path, target: Path) -> bool:
    """Link a file, or copy it if it can't be linked, to a free place. Returns whether the file exists."""
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
    tell_damaged(results, out)
    out.fact(shards_reused=taken.total(), share_reused=taken.total() / max(1, len(results)))


def tell_damaged(results: Sequence[ShardResult], out: Output) -> None:
    """Warn about the files that couldn't be taken, which the shards' work counted as `damaged`."""
    damaged = [result.counts["damaged"] for result in results if "damaged" in result.counts]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        out.warn(f"{damaged[0]}{more} can't be taken, missing or with changed bytes: made again")
