"""Proves that what is served is what was released: the engine's next tokens against those that `parity.json` records.

Another build of llama.cpp, or other kernels, change what an engine computes. A format that rounds activations amplifies
that: single log-probabilities of SmolLM2-135M moved by up to 0.4 nats. So the distributions are compared, by their
divergence over the recorded tokens and all others as one. It may be a few times what was measured at the release, as
`runtime_divergence`, between the format's runtime and the checkpoint's own program with the same weights.

Measured with that model tuned, over six prompts, in GGUF, the mean divergence was:

                                                            f16       q8_0     q6_k     q4_k_m   q4_0
    at the release, between two programs                    2.0e-06   0.0026
    other builds, no flash attention, no repacking: most    2.0e-06   0.0019   0.0034   0.0028   0.0023
    q4_k_m in place of it                                   0.031     0.035    0.027             0.32
    its base in place of it                                 0.063     0.066    0.074    0.051    0.30
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from storage.errors import ParityError
from tasks.serve.engines.protocol import Engine, EngineRefusal, NotReported

LIKELIEST = 10
TIMES = 4.0  # the divergence measured at the release
SMALLEST = 2e-5  # nats of a limit: ten times what builds change in a format without rounded activations
SIXTEEN_BITS = 0.005  # nats that arithmetic in bfloat16 adds: 0.0005 to 0.0007 in vLLM, for that model
OF_ONE = 5.0  # times the limit of the mean: that of a single probe
LEAST = 1e-4  # probability of all other tokens, which the record's four decimals can still tell
REMEDY = "Its files may be damaged, or another release's: get it again, and check it with `gristmill release verify`."


@dataclass(frozen=True)
class ServedProof:
    """The outcome: divergences in nats, with the limit of their mean. A release made before probes were recorded has
    none to compare with, and some servers don't report tokens by their ids."""

    format: str
    state: Literal["proved", "not recorded", "not reported"]
    probes: int = 0
    mean: float = 0.0
    worst: float = 0.0
    limit: float = 0.0

    def __str__(self) -> str:
        if self.state == "not recorded":
            return f"not proved: the release was made before probes of {self.format} were recorded"
        if self.state == "not reported":
            return "not proved: the engine doesn't report tokens by their ids"
        return (
            f"proved as {self.format}: {self.mean:.1e} nats from the release on average over {self.probes} prompts, at "
            f"most {self.worst:.1e}, where {self.limit:g} is allowed"
        )


async def check_served(
    engine: Engine, parity: Mapping[str, Any], format: str, *, adapter: str | None = None, further: float = 0.0
) -> ServedProof:
    """Compare the engine's next tokens with those of a format in a release's `parity.json`. `adapter` is the name of
    the one that the release is, and `further` what its base adds to the limit. Raises ParityError, which names the
    worst probe, and EngineFault."""
    if format not in parity["formats"]:
        raise ParityError(f"The release doesn't hold {format}.", f"It holds {', '.join(parity['formats'])}.")
    recorded = parity["formats"][format]
    probes = recorded.get("probes", [])
    if not probes:
        return ServedProof(format, "not recorded")
    apart = []
    for number, probe in enumerate(probes, 1):
        try:
            apart.append(_divergence(probe["top"], await engine.next_token(probe["ids"], LIKELIEST, adapter)))
        except NotReported:
            return ServedProof(format, "not reported")
        except EngineRefusal as refusal:
            raise ParityError(f"The engine refuses probe {number} of {format}: {refusal}", REMEDY) from refusal
    limit = _limit(recorded, format, engine.name) + further
    mean, worst = sum(apart) / len(apart), max(apart)
    if not (mean <= limit and worst <= OF_ONE * limit):
        raise ParityError(
            f"The engine doesn't serve the released {format}: its next tokens differ by {mean:.2g} nats on average, at "
            f"most {limit:g}, and by {worst:.2g} after probe {apart.index(worst) + 1} of {len(apart)}, at most "
            f"{OF_ONE * limit:g}.",
            REMEDY,
        )
    return ServedProof(format, "proved", len(apart), mean, worst, limit)


def change_by_base(parity: Mapping[str, Any], format: str) -> float:
    """What a base in a format adds to the limit of an adapter, which was proved over the base as it was trained."""
    recorded = parity["formats"][format]
    return TIMES * max(float(recorded["mean_divergence"]), 0.0) + _limit(recorded, format)


def _limit(recorded: Mapping[str, Any], format: str, engine: str = "") -> float:
    """The largest mean divergence. GGUF files are served by the program that they were proved in, and so is what
    transformers serves. Others compute in bfloat16."""
    measured: float | None = recorded["runtime_divergence"]
    if measured is None:  # a format whose weights can't be read
        measured = float(recorded["tolerance"]["max_runtime_divergence"]) / TIMES
    same = format.startswith("gguf-") or engine == "transformers"
    return max(TIMES * measured, SMALLEST) + (0.0 if same else SIXTEEN_BITS)


def _divergence(recorded: Sequence[tuple[int, float]], served: Sequence[tuple[int, float]]) -> float:
    """KL(recorded ‖ served) in nats, at least, as all tokens that aren't recorded count as one, and one that the engine
    doesn't name may be as likely as its last. Infinite for an engine that names none."""
    named = dict(served)
    if not named or any(math.isnan(log) for log in named.values()):
        return math.inf
    last = min(named.values())
    pairs = [(log, named.get(id, last)) for id, log in recorded]
    ours, theirs = (max(1 - math.fsum(map(math.exp, logs)), LEAST) for logs in zip(*pairs, strict=True))
    rest = ours * math.log(ours / theirs)
    return max(math.fsum(math.exp(one) * (one - other) for one, other in pairs) + rest, 0.0)
