"""Thresholds for languages that are written without spaces, where each letter is a word.

Rules that count words are those of English, times the number of letters per English word in translated sentences: 50
words are 85 letters of Chinese. Letters repeat more often than words. Shares of duplicate n-grams and mean lengths are
therefore bounded at the value that one in two hundred good documents of a benchmark exceeded. N-grams shorter than two
English words are not bounded. Lao and Burmese had too few documents and use the bounds of Thai and Khmer. Thai and Lao
don't end sentences with a mark. In Chinese and Japanese, a line of thirty characters is not short. Stop words are
FineWeb-2's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

CHINESE = list("的年在月是和日了於有為被人中为他與後也而由")


class Unspaced(NamedTuple):
    """A language's figures: letters per English word, the maximum mean length of words, the maximum shares of
    characters in duplicate n-grams from n = 5 on, the minimum number of sentences, whether sentences end in marks,
    whether the script is dense, so that thirty characters are not a short line, and stop words."""

    letters: float
    longest: float
    duplicates: Sequence[float]
    sentences: int | None
    marked: bool
    dense: bool
    stop_words: Sequence[str]

    def thresholds(self) -> dict[str, dict[str, float | None]]:
        """In the form of `LanguageThresholds`."""
        quality: dict[str, float | None] = {
            "min_words": round(50 * self.letters),
            "max_words": round(100_000 * self.letters),
            "min_mean_word_length": None,
            "max_mean_word_length": self.longest,
            "max_hashes_per_word": round(0.1 / self.letters, 3),
            "max_ellipses_per_word": round(0.1 / self.letters, 3),
        }
        repetition = {
            f"max_duplicate_{n}gram_characters": share if n >= 2 * self.letters else None
            for n, share in enumerate(self.duplicates, 5)
        }
        fineweb: dict[str, float | None] = {"max_newlines_per_word": round(0.3 / self.letters, 3)}
        if not self.marked:
            fineweb["min_punctuated_lines"] = None
        if self.dense:
            fineweb["max_short_lines"] = None
        return {
            "gopher_quality": quality,
            "gopher_repetition": repetition,
            "c4": {"min_c4_sentences": self.sentences},
            "fineweb": fineweb,
        }


_CHINESE = Unspaced(1.7, 1.9, (0.23, 0.22, 0.18, 0.16, 0.13, 0.13), 5, True, True, CHINESE)
_THAI = (0.36, 0.33, 0.32, 0.27, 0.25, 0.25)
_KHMER = (0.42, 0.41, 0.39, 0.36, 0.33, 0.30)

UNSPACED: Mapping[str, Unspaced] = {
    "zh": _CHINESE,
    "yue": _CHINESE,
    "wuu": _CHINESE,
    "ja": Unspaced(2.4, 1.4, (0.27, 0.21, 0.17, 0.14, 0.12, 0.10), 5, True, True, list("のにをはたてがとで年し月れさ")),
    "th": Unspaced(4.3, 1.8, _THAI, None, False, False, ["ใน", "ที่", "และ", "ของ", "เป็น", "มี", "การ", "ได้"]),
    "lo": Unspaced(4.1, 1.8, _THAI, None, False, False, ["ແລະ", "ໃນ", "ຂອງ", "ເປັນ", "ທີ່", "ໄດ້", "ມີ"]),
    "km": Unspaced(
        3.7,
        2.4,
        _KHMER,
        3,
        True,
        False,
        ["មាន", "បាន", "ដែល", "ជា", "និង", "នៅ", "របស់", "ក្នុង", "ថា", "នេះ", "នៃ", "ហើយ", "ទៅ", "ដោយ"],
    ),
    "my": Unspaced(
        3.1,
        2.5,
        _KHMER,
        3,
        True,
        False,
        ["သည်", "များ", "ကို", "တွင်", "ဖြစ်", "၏", "သော", "ခဲ့", "နှင့်", "ရှိ", "တို့", "မှာ", "ဦး", "၌", "က", "မ", "မှ"],
    ),
}


def ready(section: Mapping[str, Any]) -> dict[str, Any]:
    """The keys `languages` and `form.stop_words_of` for the languages of a section `filter` that are written without
    spaces. Empty if it allows none of them, or if letters aren't words in it."""
    language, form = section.get("language"), section.get("form")
    allowed = language.get("allowed") if isinstance(language, Mapping) else None
    others = isinstance(form, Mapping) and (form.get("as_datatrove") or form.get("spacy"))
    if not isinstance(allowed, Sequence) or others:
        return {}
    codes = [code for code in allowed if isinstance(code, str) and code in UNSPACED]
    own = {
        code: {
            group: found for group, found in UNSPACED[code].thresholds().items() if section.get(group, ()) is not None
        }
        for code in codes
    }
    return (
        {"languages": own, "form": {"stop_words_of": {code: UNSPACED[code].stop_words for code in codes}}}
        if own
        else {}
    )
