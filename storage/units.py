"""Sizes and times for people."""

from __future__ import annotations

import re


def size_of(size: float) -> str:
    """Bytes: `3.1 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} PB"


def bytes_of(text: str) -> int:
    """Parse bytes such as `360MB`, `1TB`, `1.5PB`, in powers of 1,000. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGTP]?)B", text.strip())
    size = int(float(match[1]) * 1000 ** " kMGTP".index(match[2] or " ")) if match else 0
    if not size:
        raise ValueError(f"{text!r} is not a size such as 360MB, 1TB or 1.5PB")
    return size


def seconds_of(text: str) -> float:
    """Parse a length of time such as `90s`, `30m`, `12h`, `2d`, `1w`. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a length of time such as 30m, 12h, 2d or 1w")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[match[2]]


def duration(seconds: float) -> str:
    """Seconds: `4.2 s`, `2 min 10 s`, `3 h 5 min`, `29.8 days`, `3.2 years`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    days = seconds / 86_400
    return f"{days:,.1f} days" if days < 1000 else f"{days / 365.25:,.1f} years"
