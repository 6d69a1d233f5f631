"""What a bucket costs: the same small run on a folder and on a local S3 server, with and without faults.

    python -m benchmarks.buckets
    python -m benchmarks.buckets --to pretrain --share 0.1

Each run is made by two machines: the first ends with `--half`, the second, which has none of its files, goes on to
`--to` and then once more, finding all of it. A proxy before the server counts requests, bytes of bodies and the objects
whose bytes arrived whole; under `faults` so large a share of the requests meets one of tests/s3_proxy.py.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.pipeline.runs import SMALL, digests, fork
from tests.s3_proxy import PATIENT, Proxy
from tests.s3_server import client_of, s3_server

FAULTS = ["500", "503", "reset", "lost", "late", "cut upload", "cut download", "torn upload", "stale"]
ROW = "{:<28} {:>7} {:>9} {:>10} {:>10} {:>14} {:>8}"
Row = tuple[str, str, int, int, int, int, float]


def run(store: str, cache: Path, to: str) -> float:
    """One machine's run; seconds."""
    os.environ["XDG_CACHE_HOME"] = str(cache)
    began = time.monotonic()
    codes, said = fork({"store": store, "overrides": [SMALL], "to": to})
    if codes != [0]:
        raise SystemExit(said)
    return time.monotonic() - began


def on_bucket(proxy: Proxy, name: str, folder: Path, steps: Sequence[tuple[str, str, str]]) -> list[Row]:
    """A row for each (what, machine, last stage)."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir(name)
    rows = []
    for what, machine, to in steps:
        proxy.asked.clear()
        proxy.fetched.clear()
        proxy.sent = proxy.received = 0
        seconds = run(f"s3://{name}/store", folder / machine, to)
        files = {path: times for path, times in proxy.fetched.items() if "/artifacts/" in path}
        twice = sum(times > 1 for path, times in files.items() if not path.endswith("/manifest.json"))
        rows.append((f"{name}: {what}", "", proxy.asked.total(), proxy.sent, proxy.received, twice, seconds))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", default="dedup", help="last stage of the first machine")
    parser.add_argument("--to", default="tokenize", help="last stage")
    parser.add_argument("--share", type=float, default=0.05, help="of the requests that meet a fault")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    given = parser.parse_args()
    steps = [
        (f"to {given.half}", "one", given.half),
        (f"then to {given.to}", "two", given.to),
        ("all found", "two", given.to),
        ("all found elsewhere", "three", given.to),
    ]
    with tempfile.TemporaryDirectory() as place, s3_server() as address:
        here, proxy = Path(place), Proxy(address)
        os.environ |= {**client_of(proxy.url), **PATIENT}
        seconds = run(str(here / "folder"), here / "of folder", given.to)
        wanted = digests(here / "folder")
        print(ROW.format("store", "equal", "requests", "bytes up", "bytes down", "fetched twice", "seconds"))
        print(ROW.format("folder", "", "", "", "", "", f"{seconds:.1f}"))
        for name, share in (("bucket", 0.0), ("faults", given.share)):
            proxy.rain(FAULTS, share, given.seed)
            rows = on_bucket(proxy, name, here / name, steps)
            struck = proxy.disarm()
            equal = "yes" if digests(f"s3://{name}/store") == wanted else "NO"
            for what, _, asked, up, down, twice, took in rows:
                print(ROW.format(what, equal, f"{asked:,}", f"{up:,}", f"{down:,}", twice, f"{took:.1f}"))
            if share:
                print(f"{struck} faults, {share:.0%} of the requests")
        proxy.shutdown()


if __name__ == "__main__":
    main()
