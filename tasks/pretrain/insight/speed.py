"""Summarises speed.jsonl: how fast a run was, and what share of its time was not training.

Model FLOPs utilisation refers to two peaks: that of matrix products as measured when the run began (`mfu_measured`),
and that of the device's data sheet (`mfu_data_sheet`, null if unknown), which `plan` and publications use.

The file has a row per report, and one per start of the child, so that the cost of restarts is included.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

OVERHEAD = ("starting", "checkpoints", "logging")  # kinds of work that don't contribute to the result


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a run: speed and utilisation are medians over reports, shares are of the whole time."""
    starts = [row for row in rows if "begun" in row]
    reports = [row for row in rows if "steps" in row]
    seconds = {"starting": sum(row["starting_seconds"] for row in starts)}
    for row in reports:
        for kind, spent in row["seconds"].items():
            seconds[kind] = seconds.get(kind, 0.0) + spent
    total = sum(seconds.values()) or 1.0
    sheet = starts[-1].get("data_sheet_flops") if starts else None
    shares = {f"{kind}_share": round(spent / total, 5) for kind, spent in seconds.items()}
    return {
        "training_seconds": round(seconds.get("data", 0.0) + seconds.get("training", 0.0), 2),
        "tokens_per_second": round(_median(reports, "tokens_per_second"), 1),
        "mfu_measured": round(_median(reports, "mfu_measured"), 4),
        "mfu_data_sheet": round(_median(reports, "mfu_data_sheet"), 4) if sheet else None,
        "peak_flops": starts[-1]["peak_flops"] if starts else 0.0,
        "data_sheet_flops": sheet,
        "peak_memory_bytes": max((row["memory_bytes"] for row in reports), default=0),
        "overhead_share": round(sum(seconds.get(kind, 0.0) for kind in OVERHEAD) / total, 5),
        "redone_steps": _redone(rows),
        **shares,
    }


def mfu_text(measured: Mapping[str, Any]) -> str:
    """Both utilisations of a report, by their names."""
    text = f"mfu_measured {measured['mfu_measured']:.1%}"
    sheet = measured["mfu_data_sheet"]
    return text if sheet is None else f"{text}, mfu_data_sheet {sheet:.1%}"


def speed_table(summary: Mapping[str, Any], precision: str) -> list[dict[str, str]]:
    """The summary as a table."""
    rows = {
        "tokens per second, median": f"{summary['tokens_per_second']:,.0f}",
        "mfu_measured, median": f"{summary['mfu_measured']:.1%} of {summary['peak_flops'] / 1e9:,.0f} GFLOP/s, the "
        f"measured peak of {precision} matrix products",
        "mfu_data_sheet, median": "unknown: no data sheet of this device"
        if summary["mfu_data_sheet"] is None
        else f"{summary['mfu_data_sheet']:.1%} of the data sheet's {summary['data_sheet_flops'] / 1e9:,.0f} GFLOP/s",
        "peak memory": f"{summary['peak_memory_bytes'] / 1e6:,.0f} MB",
    }
    shares = {name.removesuffix("_share"): value for name, value in summary.items() if name.endswith("_share")}
    overhead = shares.pop("overhead")
    rows |= {f"time in {kind}": f"{share:.2%}" for kind, share in shares.items()}
    rows["overhead (starting, checkpoints, logging)"] = f"{overhead:.2%}"
    return [{"measure": name, "value": value} for name, value in rows.items()]


def slow_hosts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The hosts that others waited for: a row for each, with its ranks."""
    by_host: dict[tuple[str, tuple[int, ...]], list[Mapping[str, Any]]] = {}
    for row in rows:
        if "slow_host" in row:
            by_host.setdefault((row["slow_host"], tuple(row["ranks"])), []).append(row)
    return [
        {
            "host": host,
            "ranks": ", ".join(map(str, ranks)),
            "named from step": reports[0]["step"],
            "to step": reports[-1]["step"],
            "times as long as others": statistics.median(row["factor"] for row in reports),
        }
        for (host, ranks), reports in by_host.items()
    ]


def _redone(rows: Sequence[Mapping[str, Any]]) -> int:
    """Steps that were repeated from an earlier checkpoint after they had been reported."""
    redone, reached = 0, 0
    for row in rows:
        redone += max(0, reached - row["begun"]) if "begun" in row else 0
        reached = row.get("step", row.get("begun", reached))
    return redone


def _median(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """The median over the rows that have the value: rows of an earlier version may have other names."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.median(values) if values else 0.0
