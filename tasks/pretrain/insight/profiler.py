"""torch's profiler over one step: a trace for ui.perfetto.dev, and the costliest operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

OPERATORS = 15  # rows of the table


class StepProfiler:
    """Profiles this process from `start` to `stop`, and writes to `folder`."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder, self.device = folder, device
        self.running: profile | None = None

    def start(self) -> None:
        """Start recording."""
        gpu = [ProfilerActivity.CUDA] if self.device.type == "cuda" else []
        self.running = profile(activities=[ProfilerActivity.CPU, *gpu], acc_events=True)
        self.running.start()

    def stop(self, step: int) -> None:
        """Write trace-STEP.json.gz and operators-STEP.json."""
        assert self.running is not None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.running.stop()
        self.running.export_chrome_trace(str(self.folder / f"trace-{step:09d}.json.gz"))
        rows = costliest(self.running, gpu=self.device.type == "cuda")
        (self.folder / f"operators-{step:09d}.json").write_text(json.dumps(rows))
        self.running = None


def costliest(measured: profile, *, gpu: bool) -> list[dict[str, Any]]:
    """The operators with the most self time (on the GPU if there is one), and their shares of the total."""
    spent = [
        (event.self_device_time_total if gpu else event.self_cpu_time_total, event) for event in measured.key_averages()
    ]
    total = sum(microseconds for microseconds, _ in spent) or 1.0
    spent.sort(key=lambda pair: pair[0], reverse=True)
    return [
        {
            "operator": event.key,
            "calls": event.count,
            "self ms": round(microseconds / 1000, 3),
            "share": f"{microseconds / total:.1%}",
        }
        for microseconds, event in spent[:OPERATORS]
        if microseconds > 0
    ]
