"""How memory that ran out shows: an error of torch or Python, or the kernel that killed a process for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import OutOfMemory

SAID = (  # beside torch.OutOfMemoryError and MemoryError; the last is NCCL's, which allocates outside of torch
    "can't allocate memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN
    "Failed to CUDA calloc",
)
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what it came from, says that memory ran out; wrapped by DeepSpeed and NCCL too."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__name__
        if name in ("OutOfMemoryError", "MemoryError") or any(said in str(seen) for said in SAID):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextmanager
def memory_named(where: str, remedy: str) -> Iterator[None]:
    """Raises OutOfMemory for every way in which memory runs out inside; `where` opens the sentence."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{where}: {str(error).splitlines()[0]}" if str(error) else f"{where}.", remedy) from error


def kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """How many processes the kernel has killed for want of memory, as far as this process may know: in its control
    group (version 2, or 1), else on the machine. Growing while a child is killed, it tells why."""
    groups = dict(line.split(":", 2)[1:] for line in (proc / "self" / "cgroup").read_text().splitlines())
    candidates = [
        cgroups / groups.get("", "/").lstrip("/") / "memory.events",
        cgroups / "memory.events",
        cgroups / "memory" / groups.get("memory", "/").lstrip("/") / "memory.oom_control",
        cgroups / "memory" / "memory.oom_control",
        proc / "vmstat",
    ]
    for path in candidates:
        try:
            counts = dict(line.split()[:2] for line in path.read_text().splitlines())
        except OSError:  # not there, or not for us to read
            continue
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return 0
