"""What each stage took: time, memory, energy where it was measured, and money by an assumed price."""

from __future__ import annotations

from pydantic import BaseModel

from flows.report.lineage import Lineage
from flows.report.reading import mapping, number, whole
from models.devices import DEVICES, PRICED, Device
from storage.manifest import Manifest

# Stages whose requests an endpoint may charge for
PAID = ("synthesise", "best_of_n", "feedback", "top_tokens", "ppo", "grpo")


class StageCost(BaseModel):
    """What making a stage's artifact took, whenever that was. Its parts are within it, unless they were stored."""

    stage: str
    seconds: float | None
    attempts: int | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    device: str
    devices: int
    joules: dict[str, float] = {}
    usd: float | None = None
    endpoint_tokens: int | None = None
    endpoint_cost: float | None = None


class Costs(BaseModel):
    """The costs of all stages, and the assumptions behind those in money."""

    stages: list[StageCost]
    seconds: float
    cpu_seconds: float
    joules: dict[str, float]
    usd: float | None
    price: float | None
    assumption: str


def costs_of(lineage: Lineage, price: float | None) -> Costs:
    """The costs of every stage. `price` is in USD per device and hour, by default that of each stage's GPU, as `plan`
    assumes it."""
    found = [_cost(stage, manifest, price) for stage, manifest in lineage.stages().items() if not manifest.adopted]
    joules: dict[str, float] = {}
    for one in found:
        for name, value in one.joules.items():
            joules[name] = joules.get(name, 0.0) + value
    priced = [one.usd for one in found if one.usd is not None]
    if price is not None:
        assumption = f"device hours at {price:,.2f} USD, as --price says"
    elif priced:
        assumption = f"device hours at rough on-demand prices of {PRICED}; --price sets another"
    else:
        assumption = "not priced: no stage ran on a device with a known price; --price sets one"
    return Costs(
        stages=found,
        seconds=round(sum(one.seconds or 0 for one in found), 3),
        cpu_seconds=round(sum(one.cpu_seconds or 0 for one in found), 3),
        joules=joules,
        usd=round(sum(priced), 6) if priced else None,
        price=price,
        assumption=assumption,
    )


def _cost(stage: str, manifest: Manifest, price: float | None) -> StageCost:
    facts, on_gpu = manifest.facts, str(manifest.facts.get("device", "cpu")) != "cpu"
    device = _device(manifest)
    devices = (whole(facts.get("processes")) or 1) if on_gpu else 1
    hourly = price if price is not None else device.price if device and on_gpu else None
    seconds = number(facts.get("seconds"))
    asked = [found for name in ("prompt_tokens", "completion_tokens") if (found := whole(facts.get(name))) is not None]
    joules = {str(kind): number(value) for kind, value in mapping(facts, "joules").items()}
    return StageCost(
        stage=stage,
        seconds=seconds,
        attempts=whole(facts.get("attempts")),
        cpu_seconds=number(facts.get("cpu_seconds")),
        peak_memory_bytes=whole(facts.get("peak_memory_bytes")),
        device=manifest.environment.get("gpu", "GPU") if on_gpu else "CPU",
        devices=devices,
        joules={kind: value for kind, value in joules.items() if value is not None},
        usd=None if hourly is None or seconds is None else round(hourly * devices * seconds / 3600, 6),
        endpoint_tokens=sum(asked) if stage in PAID and asked else None,
        endpoint_cost=number(facts.get("cost")) if stage in PAID else None,
    )


def _device(manifest: Manifest) -> Device | None:
    """The GPU of `plan`'s table that an artifact was made beside."""
    gpu = manifest.environment.get("gpu", "")
    return next((one for one in DEVICES.values() if any(name and name in gpu for name in one.reported)), None)
