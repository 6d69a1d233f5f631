"""Checks of the installation: libraries, their versions, settings, the store's place, and the machine's speed."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from storage.credentials import redact
from storage.errors import StoreError
from storage.files.disk import existing, mount
from storage.store import Store
from storage.units import size_of
from tasks.checks.check import Check, advice, verdict
from tasks.checks.extras import MODULES, lacking
from tasks.checks.quiet import NO_TELEMETRY
from tasks.stage import machine
from tasks.text.packages import FINETUNE, REQUIREMENTS, install_data

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
IMPORTED = ("numpy", "pyarrow", "numba", "tokenizers", "prefect", "spacy", "presidio_analyzer")
OF_EXTRAS = ("torch", "transformers", "deepspeed", "trl", "lm_eval", "xllamacpp")  # imported if their extra is there
IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print("ok", name, flush=True)
"""
REINSTALL = (
    f"Run `{shlex.join([sys.executable, '-m', 'pip', 'install', '--constraint', str(CONSTRAINTS), 'gristmill'])}`."
)
ROOMY = 10_000_000_000  # bytes: a run of `tiny` with its store takes a tenth
WIDTH, PRODUCTS = 1024, 20  # of the matrices that the speed is measured on
SLOW = 10.0  # GFLOP/s; a core of the last ten years does 50


def checks(store: str) -> Iterator[Check]:
    """Every check, the quick ones first. A few seconds, most of them imports."""
    yield python()
    yield versions()
    yield extras()
    yield data_packages(installed())
    yield quiet(os.environ)
    yield store_works(store)
    yield disk(Path(store) if "://" not in store else Path.home())
    yield imports([*IMPORTED, *(name for name in OF_EXTRAS if find_spec(name))])
    if find_spec("torch"):
        yield from torch_speed()


def python() -> Check:
    """Whether this Python is one that the project supports."""
    return judge_python(platform.python_version(), metadata.metadata("gristmill")["Requires-Python"])


def judge_python(found: str, supported: str) -> Check:
    """A version against a specifier such as `>=3.11,<3.14`."""
    good = SpecifierSet(supported).contains(found, prereleases=True)
    return verdict("Python", good, f"{found} at {sys.executable}", f"Use a Python {supported}.")


def versions() -> Check:
    """The installed versions against the tested ones, which come with the code."""
    return judge_versions(pins(CONSTRAINTS) | pins(REQUIREMENTS) | pins(FINETUNE), installed())


def extras() -> Check:
    """The installed extras. None is required: the data half needs none."""
    return judge_extras({extra: lacking(extra) for extra in MODULES if extra != "lingua"})


def judge_extras(missing: Mapping[str, list[str]]) -> Check:
    """The installed extras by name, and the missing modules of those installed in part. An absent one isn't a fault."""
    there = ", ".join(extra for extra, modules in missing.items() if not modules) or "none"
    absent = ", ".join(
        extra if len(modules) == len(MODULES[extra]) else f"{extra} (lacks {', '.join(modules)})"
        for extra, modules in missing.items()
        if modules
    )
    return Check("extras", "passed", f"{there} installed" + (f"; not {absent}" if absent else ""))


def data_packages(found: Mapping[str, str]) -> Check:
    """Packages that are read as data. A profile with its own sources and filters may not need them."""
    needed = pins(REQUIREMENTS)
    missing = [one for one in needed if canonicalize_name(one) not in found]
    value = f"{', '.join(missing)} not installed" if missing else f"{len(needed)} installed"
    return advice("data packages", not missing, value, f"Run `{install_data()}`.")


def installed() -> dict[str, str]:
    """Every distribution and its version, by its name as pip spells it."""
    return {canonicalize_name(found.name): found.version for found in metadata.distributions()}


def judge_versions(pins: Mapping[str, str], found: Mapping[str, str]) -> Check:
    """A missing package fails; a version other than the tested one is advice."""
    name = "versions"
    needed = {
        canonicalize_name(re.split(r"[\[<>=!;~ ]", line)[0])
        for line in metadata.requires("gristmill") or []
        if "extra ==" not in line
    }
    missing = sorted(one for one in needed if one not in found)
    if missing:
        return Check(name, "failed", f"{', '.join(missing)} not installed", REINSTALL)
    other = [
        f"{one} {found[canonicalize_name(one)]} instead of {pin}"
        for one, pin in pins.items()
        if canonicalize_name(one) in found and found[canonicalize_name(one)].partition("+")[0] != pin
    ]
    more = f" and {len(other) - 3} more" if len(other) > 3 else ""
    value = "; ".join(other[:3]) + more if other else f"{len(needed)} dependencies there, {len(pins)} pins kept"
    return advice(name, not other, value, f"They were not tested together. {REINSTALL}")


def quiet(environment: Mapping[str, str]) -> Check:
    """Whether nothing leaves the machine unless a profile says so. A Prefect server is used only if one is named."""
    loud = [name for name, value in NO_TELEMETRY.items() if environment.get(name, "").lower() != value]
    server = environment.get("PREFECT_API_URL")
    value = (
        f"{', '.join(loud)} not set"
        if loud
        else f"no telemetry, {f'server {redact(server)}' if server else 'own server'}"
    )
    return verdict(
        "settings", not loud, value, "Unset them in your shell: the gristmill command sets what keeps libraries quiet."
    )


def store_works(url: str) -> Check:
    """Whether writing, renaming and locking work in the place of the artifacts."""
    name = "store"
    try:
        opened = Store(url)
        with tempfile.TemporaryDirectory(dir=existing(opened.local), prefix=".gristmill-") as folder:
            _use(Store(str(Path(folder) / "store")))
    except (StoreError, OSError) as error:
        return Check(name, "failed", f"{url}: {error}", "Give a folder that you can write to: --set runtime.store=…")
    there = "is there" if opened.local.exists() else "is not there yet"
    return Check(name, "passed", f"{url} {there}; its disk writes, renames and locks")


def _use(store: Store) -> None:
    key = "0" * 64
    with store.lock("doctor", key, lambda holder: None):
        draft = store.workspace("doctor", key) / "draft"
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text("written")
        draft.rename(draft.with_name("renamed"))


def disk(folder: Path) -> Check:
    """Free space under the store."""
    free = shutil.disk_usage(existing(folder)).free
    return advice("disk", free > ROOMY, f"{size_of(free)} free on {mount(folder)}", "Free space: `gristmill store gc`.")


def imports(names: Sequence[str]) -> Check:
    """The large libraries, imported in a child process, which a crash of one ends instead of this one."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", IMPORT_EACH, *names], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    count = sum(line.startswith("ok ") for line in done.stdout.splitlines())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Check("imports", "failed", f"{names[count]}: {last}", REINSTALL)
    return Check("imports", "passed", f"{len(names)} libraries in {seconds:.1f} s")


def torch_speed() -> Iterator[Check]:
    """The device for computing, and how fast it multiplies matrices."""
    import torch

    cuda = torch.cuda.is_available()
    where = (
        torch.cuda.get_device_name()
        if cuda
        else f"no GPU; {machine.cores()} cores, {size_of(machine.memory())} of memory"
    )
    yield Check("device", "passed", where)
    device, dtype = (torch.device("cuda"), torch.bfloat16) if cuda else (torch.device("cpu"), torch.float32)
    matrix = torch.randn(WIDTH, WIDTH, device=device, dtype=dtype)

    def seconds(work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    best = min(seconds(lambda: matrix @ matrix) for _ in range(PRODUCTS))
    speed = 2 * WIDTH**3 / best / 1e9
    yield judge_speed(speed, str(dtype).removeprefix("torch."), torch.get_num_threads())


def judge_speed(gigaflops: float, dtype: str, threads: int) -> Check:
    """The speed of matrix products against that of a recent core."""
    return advice(
        "matrix products",
        gigaflops >= SLOW,
        f"{gigaflops:,.0f} GFLOP/s in {dtype}, {threads} threads",
        "Other work uses the cores, or threads outnumber the cores: try OMP_NUM_THREADS=1.",
    )


def pins(path: Path) -> dict[str, str]:
    """The versions in a file of constraints or requirements, by name as it is spelled there."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))
