"""Tasks for the process that measures (benchmarks/gpu/worker.py), as its tests need them."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any


def measure(what: str) -> dict[str, Any]:
    """What a task sees of its process; then it does as it is told."""
    import torch
    from torch._C._distributed_c10d import HashStore

    seen = {"pid": os.getpid(), "draws": [random.random(), float(torch.rand(()))], "left": os.environ.get("LEFT")}
    if what == "leave much":
        print("as libraries do")
        os.environ["LEFT"] = "behind"
        os.environ["RANK"] = "0"
        torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        torch._dynamo.config.optimize_ddp = False
    elif what == "leave a setting":
        torch.set_float32_matmul_precision("high")
    elif what == "fail":
        raise torch.OutOfMemoryError("no room for it\nand much advice")
    elif what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "hang":
        time.sleep(600)
    seen["optimize_ddp"] = torch._dynamo.config.optimize_ddp
    return seen
