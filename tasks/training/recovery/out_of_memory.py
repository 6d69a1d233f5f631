"""Lack of memory, recognised in an error of torch or Python, or in a process killed by the kernel; and work in halves,
where a batch is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from storage.errors import GristmillError, LostProcess, OutOfMemory
from tasks.stage import machine

Fault = TypeVar("Fault", bound=GristmillError)
Item = TypeVar("Item")
Made = TypeVar("Made")
SAID = (  # beside torch.OutOfMemoryError and MemoryError
    "can't allocate memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",  # cuBLAS
    "ALLOCATION_FAILED",  # cuDNN
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",  # a GPU without room for what cuBLAS needs itself
    "Failed to CUDA calloc",  # NCCL, which allocates outside of torch
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one of its causes, says that memory ran out; DeepSpeed and NCCL wrap them."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__name__
        if name in ("OutOfMemoryError", "MemoryError") or any(said in str(seen) for said in SAID):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextmanager
def memory_named(where: str, remedy: str) -> Iterator[None]:
    """Turns every error by which memory runs out inside into OutOfMemory; `where` starts its message."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{where}: {str(error).splitlines()[0]}" if str(error) else f"{where}.", remedy) from error


def in_halves(
    work: Callable[[Sequence[Item]], Iterable[Made]],
    items: Sequence[Item],
    too_large: Callable[[Item], OutOfMemory],
    forget: Callable[[], None] = lambda: None,
) -> list[Made]:
    """What `work` makes of the items of a batch, in their order. Where memory runs out, `forget` gives back what was
    kept in it, and the batch is taken in halves. Raises what `too_large` says of an item that doesn't fit alone."""
    try:
        return [*work(items)]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise too_large(items[0]) from error
    import torch

    forget()
    torch.cuda.empty_cache()  # nothing, where no GPU is used
    middle = len(items) // 2
    return [made for part in (items[:middle], items[middle:]) for made in in_halves(work, part, too_large, forget)]


def named(error: Fault, killed: int) -> Fault | OutOfMemory:
    """The fault by its right name: a process ended by the kernel's OOM killer can't say so, but the kernel counts
    (`killed`: since the child was started)."""
    if not isinstance(error, LostProcess) or error.facts.get("how") == "hung" or not killed:
        return error
    return OutOfMemory("The kernel killed a training process because memory ran out.", error.remedy, **error.facts)


def kills(proc: Path = machine.PROC, cgroups: Path = machine.CGROUPS) -> int:
    """How many processes the kernel's OOM killer has ended in this control group (version 2, or 1), else on the
    machine. A count that grew while a child was killed tells why."""
    groups = machine.memory_groups(proc, cgroups)
    counters = [group / name for group in groups for name in ("memory.events", "memory.oom_control")]
    for path in (*counters, proc / "vmstat"):
        try:
            counts = dict(line.split()[:2] for line in path.read_text().splitlines())
        except OSError:  # missing, or not readable for us
            continue
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return 0
