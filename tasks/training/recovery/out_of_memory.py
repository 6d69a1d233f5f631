"""Recognises lack of memory, in an error of torch or Python or in a process killed by the kernel, and processes batches
that are too large in halves.
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
MESSAGES = (  # besides torch.OutOfMemoryError and MemoryError
    "can't allocate memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",  # cuBLAS
    "ALLOCATION_FAILED",  # cuDNN
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",  # a GPU without room for what cuBLAS needs itself
    "Failed to CUDA calloc",  # NCCL, which allocates outside of torch
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error or one of its causes reports that memory ran out. DeepSpeed and NCCL wrap such errors."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__name__
        if name in ("OutOfMemoryError", "MemoryError") or any(message in str(seen) for message in MESSAGES):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextmanager
def memory_named(where: str, remedy: str) -> Iterator[None]:
    """Turns every error in the block that reports lack of memory into OutOfMemory. `where` begins its message."""
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
    """The results of `work` for the items of a batch, in their order. If memory runs out, `forget` frees what was kept
    in it, and the batch is processed in halves. Raises `too_large(item)` for an item that doesn't fit by itself."""
    try:
        return [*work(items)]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise too_large(items[0]) from error
    import torch

    forget()
    torch.cuda.empty_cache()  # does nothing without a GPU
    middle = len(items) // 2
    halves = (items[:middle], items[middle:])
    return [result for half in halves for result in in_halves(work, half, too_large, forget)]


def true_fault(error: Fault, killed: int) -> Fault | OutOfMemory:
    """The error, or OutOfMemory in its place if the kernel's OOM killer ended the lost process. The process can't
    report that itself, but the kernel counts: `killed` is the count since the child was started."""
    if not isinstance(error, LostProcess) or error.facts.get("how") == "hung" or not killed:
        return error
    return OutOfMemory("The kernel killed a training process because memory ran out.", error.remedy, **error.facts)


def kills(proc: Path = machine.PROC, cgroups: Path = machine.CGROUPS) -> int:
    """The number of processes that the kernel's OOM killer has ended in this control group (version 2 or 1), else on
    the machine. If it grew while a child was killed, that was the reason."""
    groups = machine.memory_groups(proc, cgroups)
    counters = [group / name for group in groups for name in ("memory.events", "memory.oom_control")]
    for path in (*counters, proc / "vmstat"):
        try:
            counts = dict(line.split()[:2] for line in path.read_text().splitlines())
        except OSError:  # missing, or not readable by this user
            continue
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return 0
