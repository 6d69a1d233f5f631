"""Named sets of rules. `web` is for web pages, `clean` for edited text such as books, documentation and wikis. The
others are named after the data set that they reproduce, with datatrove's defaults.

`gopher`, `fineweb` and `c4` give the verdicts of datatrove's own filters with words cut at white space, which a command
in `benchmarks/filter` verifies. A preset doesn't cover the rest of a data set's recipe: extraction from HTML, URL
lists, deduplication, personal data, and trained classifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

Preset = Literal["web", "clean", "gopher", "c4", "fineweb", "fineweb2", "dclm"]

HEURISTICS = ("gopher_quality", "gopher_repetition", "c4", "fineweb")  # rules for the form of web pages
EXACT = {"as_datatrove": True}
REFINEDWEB = {"allowed": ["en"], "min_score": 0.65, "measure": EXACT}

PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    "web": {"form": {}, "gopher_quality": {}, "gopher_repetition": {}, "c4": {}, "fineweb": {}, "toxicity": {}},
    "clean": {
        "form": {},
        "gopher_quality": None,
        "gopher_repetition": None,
        "c4": None,
        "fineweb": None,
        "toxicity": None,
    },
    # Rae et al. 2021, appendix A.1.1
    "gopher": {"form": EXACT, "gopher_quality": {}, "gopher_repetition": {}, "c4": None, "fineweb": None},
    # Raffel et al. 2020, section 2.2. The user supplies the list of bad words
    "c4": {
        "form": EXACT,
        "gopher_quality": None,
        "gopher_repetition": None,
        "c4": {"remove_lines": True},
        "fineweb": None,
    },
    # Penedo et al. 2024, and datatrove's examples/fineweb.py
    "fineweb": {
        "language": REFINEDWEB,
        "form": {**EXACT, "fineweb_after_c4": True, "c4": {"terminal_punctuation": False}},
        "gopher_quality": {},
        "gopher_repetition": {},
        "c4": {"remove_lines": True},
        "fineweb": {},
    },
    # Penedo et al. 2025, fineweb-2-pipeline.py. Thresholds and stop words of a language go under `languages`
    "fineweb2": {
        "form": EXACT,
        "gopher_quality": {},
        "gopher_repetition": {
            "max_duplicate_paragraphs": None,
            "max_duplicate_paragraph_characters": None,
            "max_duplicate_line_characters": None,
        },
        "c4": None,
        "fineweb": {"max_short_lines": None, "max_repeated_line_characters": 0.1},
    },
    # Li et al. 2024, the heuristics of RefinedWeb without line modifiers. The user supplies the classifier
    "dclm": {
        "language": REFINEDWEB,
        "form": EXACT,
        "gopher_quality": {},
        "gopher_repetition": {},
        "c4": None,
        "fineweb": None,
    },
}


def expanded(preset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The section `filter` with the groups of a preset, which `settings` override. Raises ValueError for an unknown
    preset."""
    if preset not in get_args(Preset):
        raise ValueError(f"unknown preset {preset}: choose one of {', '.join(get_args(Preset))}")
    return laid_over(PRESETS[preset], settings)  # type: ignore[index]


def without_groups(section: Mapping[str, Any], preset: object) -> dict[str, Any]:
    """The section `filter` of a profile's parents without the groups that the profile's preset fills in."""
    filled = PRESETS.get(preset, {})  # type: ignore[call-overload]
    return {key: value for key, value in section.items() if key not in filled}


def laid_over(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`base`, updated recursively with `overrides`."""
    merged = dict(base)
    for key, value in overrides.items():
        below = merged.get(key)
        merged[key] = laid_over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
