"""The files of a profile's lists. Their digests are part of the key."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class UrlWords(StageConfig):
    """Words in addresses, as RefinedWeb counts them (Penedo et al. 2023, appendix G.1)."""

    file: str = Field(description="path of the file, a word a line")
    least: int = Field(1, ge=1, description="how many of them must be in an address (FineWeb: 1 hard, 2 soft ones)")
    anywhere: bool = Field(
        False, description="also within words, after everything but letters and digits is left out of the address"
    )


class ListsConfig(StageConfig):
    """Lists, and where a document's address stands. A line that starts with # is a comment."""

    url_fields: list[str] = Field(
        ["url", "uri", "source_url"],
        min_length=1,
        description="fields of the metadata with the address; `meta.url` works",
    )
    hosts: list[str] = Field(
        [], description="files with a host or domain a line, plain or as in /etc/hosts; subdomains count as well"
    )
    urls: list[str] = Field(
        [], description="files with an address a line; `https://`, `www.` and a last / don't matter"
    )
    url_words: list[UrlWords] = Field([], description="words in addresses")
    words: dict[str, str] = Field(
        {},
        description="files of words and phrases, one a line, by the language of the documents that they are for, or "
        "`any`; matched whole and in any case, in ja, th and zh also within words (C4)",
    )
