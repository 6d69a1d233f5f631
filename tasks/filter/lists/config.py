"""The settings of a profile's lists. The digests of their files are part of the key."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class UrlWords(StageConfig):
    """Words in addresses, as RefinedWeb counts them (Penedo et al. 2023, appendix G.1)."""

    file: str = Field(description="path of the file, with one word per line")
    least: int = Field(1, ge=1, description="minimum words of the file in an address (FineWeb: 1 hard, 2 soft words)")
    anywhere: bool = Field(
        False, description="also match within words, after removing everything but letters and digits from the address"
    )


class ListsConfig(StageConfig):
    """Lists, and the fields with a document's address. A line that starts with # is a comment."""

    url_fields: list[str] = Field(
        ["url", "uri", "source_url"],
        min_length=1,
        description="metadata fields with the address, or paths such as `meta.url`",
    )
    hosts: list[str] = Field(
        [], description="files with a host or domain per line, plain or as in /etc/hosts, which includes its subdomains"
    )
    urls: list[str] = Field(
        [], description="files with an address per line, whose `https://`, `www.` and final / don't matter"
    )
    url_words: list[UrlWords] = Field([], description="words in addresses")
    words: dict[str, str] = Field(
        {},
        description="files with a word or phrase per line, by the language of the documents they apply to, or `any`. "
        "They match in upper or lower case, as whole words, and in ja, th and zh also within words (C4)",
    )
