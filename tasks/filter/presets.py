"""Rules by name: `web` for pages of the web, `clean` for text that somebody wrote and kept, such as books,
documentation and wikis; the others by the data set that they reproduce, with datatrove's defaults.

`gopher`, `fineweb` and `c4` give the verdicts of datatrove's own filters with words cut at white space; a command in
`benchmarks/filter` compares them. What else a data set was made with is not in a preset: extraction from HTML, lists of
URLs, deduplication, personal data, and trained classifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

Preset = Literal["web", "clean", "gopher", "c4", "fineweb", "fineweb2", "dclm"]

HEURISTICS = ("gopher_quality", "gopher_repetition", "c4", "fineweb")  # of the form of pages of the web
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
    # Raffel et al. 2020, section 2.2; its list of bad words is the user's to give
    "c4": {
        "form": EXACT,
        "gopher_quality": None,
        "gopher_repetition": None,
        "c4": {"remove_lines": True},
        "fineweb": None,
    },
    # Penedo et al. 2024; datatrove's examples/fineweb.py
    "fineweb": {
        "language": REFINEDWEB,
        "form": {**EXACT, "fineweb_after_c4": True, "c4": {"terminal_punctuation": False}},
        "gopher_quality": {},
        "gopher_repetition": {},
        "c4": {"remove_lines": True},
        "fineweb": {},
    },
    # Penedo et al. 2025, fineweb-2-pipeline.py. Thresholds and stop words of a language stand under `languages`
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
    # Li et al. 2024, the heuristics of RefinedWeb: no line modifiers, and its classifier is the user's to give
    "dclm": {
        "language": REFINEDWEB,
        "form": EXACT,
        "gopher_quality": {},
        "gopher_repetition": {},
        "c4": None,
        "fineweb": None,
    },
}


def expanded(preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A section `filter` with the groups of a preset, in which what is `given` has the last word. Raises ValueError for
    a preset that there is not."""
    if preset not in get_args(Preset):
        raise ValueError(f"there is no preset {preset}; there are {', '.join(get_args(Preset))}")
    return laid_over(PRESETS[preset], given)  # type: ignore[index]


def without_groups(section: Mapping[str, Any], preset: object) -> dict[str, Any]:
    """A section `filter` without the groups that a preset fills: what a profile's parents say of them is dropped where
    the profile names a preset."""
    filled = PRESETS.get(preset, {})  # type: ignore[call-overload]
    return {key: value for key, value in section.items() if key not in filled}


def laid_over(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what is `given`, key by key, which has the last word."""
    merged = dict(base)
    for key, value in given.items():
        below = merged.get(key)
        merged[key] = laid_over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
