"""How the form of texts is measured. The thresholds are in `rules.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from tasks.filter.form.latex import MathematicsConfig
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
    """The name of the signal that counts the distinct stop words of a language with its own list."""
    return f"stop_words_{language}"


class FormConfig(StageConfig):
    """Word list, lengths and line rules. Everything else follows the papers."""

    as_datatrove: bool = Field(
        False,
        description="count exactly as datatrove 0.10 does: the most frequent n-gram counts even if it occurs once, a "
        "line that ends in a closing quotation mark or in white space lacks terminal punctuation, blank lines are "
        "duplicates of each other, and words are cut only at white space. Off by default, because it removes short "
        "texts and dialogue",
    )
    spacy: str | None = Field(
        None,
        pattern=r"^[a-z]{2,3}$",
        description="cut words and sentences of all documents with spaCy's tokenizer for this language, such as en, as "
        "datatrove does by default. It takes hundreds of times as long. With null, words are cut at white space and, "
        "unless `as_datatrove`, each letter of a script without spaces is a word",
    )
    formulas: MathematicsConfig | None = Field(
        None,
        description="LaTeX formulas that counts of words and n-grams leave out ({} for the usual ones), or null to "
        "count all text. Rules over words then judge the prose, and `mathematics` exempts no document from Gopher's",
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
        description="measure the signals of `fineweb` on the lines that C4 keeps, because in datatrove's chain C4's "
        "filter rewrites a text before FineWeb's sees it. With `c4.remove_lines` these lines are the kept text",
    )
    short_line_length: int = Field(30, ge=0, description="a line of at most this many characters is short (FineWeb)")
    c4: C4LineRules = Field(default_factory=C4LineRules, description="which lines C4 keeps")

    @property
    def part_unspaced(self) -> bool:
        """Whether each letter of a script without spaces is a word."""
        return not self.as_datatrove and self.spacy is None
