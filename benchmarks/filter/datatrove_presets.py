"""datatrove's chains by the name of the data set, run by the peers' own environment: nothing of the project
but the benchmarks' own words is imported.

`datatrove_presets.py IN.jsonl OUT.json LID.ftz plain|spacy`: for each preset and document, the first filter that
removes it and its reason, or a digest of the text that the chain leaves. Words and sentences are cut plainly, as by
`--plain` of `datatrove_filters.py`, or by its own choice, spaCy.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
)
from fasttext.FastText import _FastText

from benchmarks.filter.datatrove_filters import use_plain_tokenizer


def chains(model: Path) -> dict[str, list[Any]]:
    """The filters of each data set in their order: examples/fineweb.py, fineweb-2-pipeline.py, and the papers."""
    english = LanguageFilter(languages="en")
    english.model._model = _FastText(str(model))  # it would download its own
    gopher = [GopherRepetitionFilter(), GopherQualityFilter()]
    return {
        "gopher": gopher,
        "c4": [C4QualityFilter()],
        "fineweb": [english, *gopher, C4QualityFilter(filter_no_terminal_punct=False), FineWebQualityFilter()],
        "fineweb2": [
            GopherRepetitionFilter(dup_para_frac=0, dup_line_char_frac=0, dup_para_char_frac=0),
            FineWebQualityFilter(short_line_thr=999, char_duplicates_ratio=0.1),
            GopherQualityFilter(),
        ],
        "dclm": [english, *gopher],
    }


def judged(filters: list[Any], text: str) -> str:
    """`kept DIGEST`, or the filter that removes the text and its reason."""
    document = Document(text=text, id="0")
    for step in filters:
        try:
            verdict = step.filter(document)
        except ZeroDivisionError:  # shares of a text without words
            return f"raises {type(step).__name__}"
        if verdict is not True:
            reason = verdict[1] if isinstance(verdict, tuple) else ""
            return f"removed {type(step).__name__} {reason}"
    return f"kept {hashlib.sha256(document.text.encode()).hexdigest()}"


def main() -> None:
    """Read the arguments, judge every document by every chain."""
    source, out, model = map(Path, sys.argv[1:4])
    if sys.argv[4] == "plain":
        use_plain_tokenizer()
    texts = [json.loads(line)["text"] for line in source.read_text(encoding="utf-8").split("\n") if line]
    verdicts = {name: [judged(filters, text) for text in texts] for name, filters in chains(model).items()}
    out.write_text(json.dumps(verdicts))
    print(json.dumps({"documents": len(texts)}))


if __name__ == "__main__":
    main()
