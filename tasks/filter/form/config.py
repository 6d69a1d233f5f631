"""How the form of texts is measured. The thresholds are in `rules.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from tasks.filter.mathematics.config import MathematicsConfig
from tasks.stage.config import StageConfig

Word = Annotated[str, StringConstraints(pattern=r"^\S+$")]


class C4LineRules(StageConfig):
    """Which lines C4 keeps (Raffel et al. 2020, section 2.2, and `c4_utils.py` in tensorflow_datasets)."""

    terminal_punctuation: bool = Field(
        True, description="drop lines that don't end in . ? ! \" or ', and lines that end in ..."
    )
    min_words: int = Field(3, ge=0, description="drop lines with fewer words")
    max_word_length: int = Field(1000, ge=1, description="drop lines that contain a longer word, in characters")
    javascript: bool = Field(True, description='drop lines that contain "javascript"')
    policy: bool = Field(True, description='drop lines that contain a phrase such as "privacy policy" or "use cookies"')
    citations: bool = Field(True, description='remove "[1]", "[edit]" and "[citation needed]" from lines')


def stop_words_in(language: str) -> str:
    """The signal that counts the distinct stop words of a language with a list of its own."""
    return f"stop_words_{language}"


class FormConfig(StageConfig):
    """Word list, lengths and line rules; everything else follows the papers."""

    as_datatrove: bool = Field(
        False,
        description="count exactly as datatrove 0.10 does: the most frequent n-gram counts even if it occurs once, a "
        "line that ends in a closing quotation mark or in white space has no terminal punctuation, and blank lines are "
        "duplicates of each other; words are cut at white space alone. Short texts and dialogue are removed for that, "
        "so it is off by default",
    )
    spacy: str | None = Field(
        None,
        pattern=r"^[a-z]{2,3}$",
        description="cut words and sentences by spaCy's tokenizer of this language, such as en, in all documents, as "
        "datatrove does by default, which takes hundreds of times as long; null: words are what white space separates "
        "and, unless `as_datatrove`, each letter of a script without spaces",
    )
    formulas: MathematicsConfig | None = Field(
        None,
        description="formulas in LaTeX that counts of words and n-grams leave out, {} for the usual ones: rules over "
        "words then judge the prose, and `mathematics` spares no document those of Gopher; null: all text counts",
    )
    stop_words: list[Word] = Field(
        ["the", "be", "to", "of", "and", "that", "have", "with"],
        min_length=1,
        description="stop words, case-sensitive, compared with whole words (Gopher, appendix A.1.1)",
    )
    stop_words_of: dict[str, Annotated[list[Word], Field(min_length=1)]] = Field(
        {},
        description="stop words by language, such as {de: [der, die, und]}, which `gopher_quality.min_stop_words` "
        "counts in documents in that language",
    )
    fineweb_after_c4: bool = Field(
        False,
        description="measure the signals of `fineweb` on the lines that C4 keeps: in datatrove's chain C4's filter has "
        "rewritten a text before FineWeb's sees it. With `c4.remove_lines` that is the text that is kept",
    )
    short_line_length: int = Field(30, ge=0, description="a line of at most this many characters is short (FineWeb)")
    c4: C4LineRules = Field(default_factory=C4LineRules, description="which lines C4 keeps")

    @property
    def part_unspaced(self) -> bool:
        """Whether each letter of a script without spaces is a word."""
        return not self.as_datatrove and self.spacy is None
