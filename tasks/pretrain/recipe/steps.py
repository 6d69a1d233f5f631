"""The lengths of a run's phases in steps: warmups by doubling, and the final decay. The config builds on this."""

from __future__ import annotations


def decay_steps(share: float, steps: int) -> int:
    """The steps of wsd's decay, at least one."""
    return max(1, round(share * steps))


def parts_at(step: int, *, warmup_steps: int, parts: int) -> int:
    """`parts` (a power of 2) at step 1, halved in equal intervals of the warmup, and 1 after it."""
    if step > warmup_steps:
        return 1
    intervals = parts.bit_length() - 1
    return parts >> ((step - 1) * intervals // warmup_steps)


def wholes_until(steps: int, whole: int, *, warmup_steps: int, parts: int) -> int:
    """The sum of `whole` divided by `parts_at` over steps 1 to `steps`, where `parts` divides `whole`."""
    intervals = parts.bit_length() - 1
    total = whole * max(0, steps - warmup_steps)
    for interval in range(intervals):
        first, last = (-(-(number * warmup_steps) // intervals) for number in (interval, interval + 1))
        total += (whole // parts << interval) * (min(steps, last) - min(steps, first))
    return total
