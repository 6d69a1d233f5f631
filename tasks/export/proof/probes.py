"""The likeliest next tokens of a format after a few prompts, which a server compares itself with before it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.runtimes.protocol import ModelRuntime

OF_EACH = 3  # prompts of the profile, and as many of held-out text
LIKELIEST = 10  # tokens after each


def probe(runtime: ModelRuntime, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """For each prompt its ids, and the ids and natural logarithms of the probabilities of the likeliest next tokens, as
    JSON values."""
    probes = []
    for ids in prompts:
        logs_V = runtime.log_probabilities(ids)
        likeliest = np.argsort(-logs_V, kind="stable")[:LIKELIEST].tolist()
        top = [[id, round(float(logs_V[id]), 4)] for id in likeliest if np.isfinite(logs_V[id])]
        probes.append({"ids": list(ids), "top": top})
    return probes
