"""The `synthesise` stage: a model writes documents from downloaded ones."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from storage.artifact import Artifact
from storage.errors import EmptyOutput, harmless
from storage.files.flush import link_or_copy
from storage.shards.documents import Document, Verdict, count_rows, shard_name, write_documents, write_ledger
from storage.shards.lines import write_json_lines
from tasks.endpoint.client import Completion, Endpoint, address_of, api_key
from tasks.endpoint.paid import ANSWERS, KEPT, PaidAnswers, known_answers
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.synthesise.choose import Chosen, Wanted, asked_of, fingerprints, prompts_for, prompts_of, requests_of
from tasks.synthesise.config import SOURCE, SynthesiseConfig
from tasks.synthesise.judge import document_in
from tasks.synthesise.report import Account, report

SECTION = "runtime.synthesise"
ENOUGH = 100  # answers to judge the rest by
PROBLEM = 100  # characters of a server's words in a line of progress
QUOTED = 80  # characters of an answer in an error
CARRIED = ("title", "url", "host", "language", "license")  # from the metadata of the original
SHARDS = "*.parquet"
SECONDS = 1.0  # between two messages of progress


def check_here(config: SynthesiseConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a missing key and for a missing or invalid address, SourceError for prompts that can't be
    used. Asked before the first stage of a run starts."""
    prompts_of(config)
    endpoint = config.endpoint(runtime.synthesise)
    address_of(endpoint, SECTION)
    api_key(endpoint, SECTION)


@stage(version=1, runtime=("endpoint", "synthesise"), sources=fingerprints, check_here=check_here)
def synthesise(config: SynthesiseConfig, documents: Artifact, out: Output) -> None:
    """Ask the model about the chosen documents, and add what it writes to the documents, in shards of their own.

    Writes:

    - documents/: the shards of the input as they are, then a shard for each of them that something was made of
    - answers/: the answers as they came, by the keys of their requests
    - ledger/: answers that are no documents, under the id of the document that was sent

    Each answer is kept as it comes, and taken from other artifacts of this stage, finished or not. Raises SourceError
    if the endpoint fails, EmptyOutput if no document is chosen or too many answers are no documents.
    """
    chosen = Chosen(config, documents.files(SHARDS))
    account = Account(read=sum(map(count_rows, chosen.paths)))
    total = sum(len([*prompts_for(config, one)]) for path in chosen.paths for one in chosen.ids(path))
    if not total:
        raise EmptyOutput(
            f"synthesise chooses none of {account.read:,} documents.",
            "Correct synthesise.sources, synthesise.characters or synthesise.share.",
        )
    paid = PaidAnswers(out.scratch / KEPT, known_answers(out.ever_made(), out.unfinished(), out.warn))
    runtime = out.runtime
    settings = config.endpoint(runtime.synthesise)
    endpoint = Endpoint(settings, asked_of(config, SECTION), runtime.endpoint, paid)
    made = _Made(config, account, out, paid, len(chosen.paths))
    (out.path / "documents").mkdir()
    for number, path in enumerate(chosen.paths):
        link_or_copy(path, out.path / "documents" / shard_name(number))
    progress = _Progress(out, endpoint, total)
    with closing(endpoint.stream(_once(chosen, prompts_of(config), made), progress.tell)) as answers:
        for number, of_shard in itertools.groupby(answers, lambda pair: pair[0].shard):
            made.begin(number)
            for wanted, answer in of_shard:
                made.add(wanted, answer)
                progress.add()
            made.close()
    made.finish()
    report(account, config, endpoint, out)


def _once(chosen: Chosen, prompts: dict[str, str], made: _Made) -> Iterator[Wanted]:
    """Each request once, however many documents have its text."""
    seen: set[bytes] = set()
    for number in range(len(chosen.paths)):
        for wanted in requests_of(chosen, prompts, number):
            key = bytes.fromhex(wanted.key)[:16]
            if key in seen:
                made.repeated(wanted)
            else:
                seen.add(key)
                yield wanted


class _Progress:
    """Reports how many answers there are, and what keeps the rest. They come in any order."""

    def __init__(self, out: Output, endpoint: Endpoint, total: int) -> None:
        self.out, self.endpoint, self.total = out, endpoint, total
        self.tell()

    def add(self) -> None:
        """Another answer is there."""
        if time.monotonic() - self._told >= SECONDS:
            self.tell()

    def tell(self) -> None:
        """Report now."""
        self._told = time.monotonic()
        endpoint, note = self.endpoint, self.endpoint.host
        if endpoint.problem:
            note += f" is asked again, as {endpoint.problem[:PROBLEM]}"
        self.out.progress(min(endpoint.answered, self.total), self.total, "answers", note)


class _Made:
    """Writes what the answers about the documents of one shard after another are."""

    def __init__(self, config: SynthesiseConfig, account: Account, out: Output, paid: PaidAnswers, shards: int) -> None:
        self.config, self.account, self.out, self.paid = config, account, out, paid
        self._shards = self._read = shards  # of documents so far, and those that are read
        self._number = 0  # of the shard that is asked about
        self._documents: list[Document] = []
        self._answers: list[dict[str, Any]] = []
        self._verdicts: list[Verdict] = []
        self._repeated: list[Verdict] = []
        self._texts: set[str] = set()
        self._failed: list[str] = []

    def begin(self, number: int) -> None:
        """Begin with the answers about a shard."""
        self._number = number
        self._documents, self._answers, self._verdicts = [], [], []

    def repeated(self, wanted: Wanted) -> None:
        """A request that was made already."""
        self.account.fates[wanted.prompt]["repeated_request"] += 1
        self._repeated.append(self._verdict(wanted, "repeated_request"))

    def add(self, wanted: Wanted, answer: Completion | None) -> None:
        """Judge an answer. Raises EmptyOutput as soon as too many are no documents."""
        text, reason = document_in(answer, wanted.excerpt)
        if answer is not None:
            self._keep(wanted)
        document = self._document(wanted, text)
        if not reason and document.id in self._texts:
            reason = "repeated_answer"
        if reason:
            self.account.fates[wanted.prompt][reason] += 1
            self._verdicts.append(self._verdict(wanted, reason))
            self._failed = [*self._failed, f"{reason}: {text[:QUOTED]!r}" if text else reason][:3]
        else:
            self._texts.add(document.id)
            self._documents.append(document)
            self.account.add(document, wanted.prompt)
        self._check(ENOUGH)

    def close(self) -> None:
        """Write what the answers about a shard are."""
        if self._documents:
            write_documents(self.out.path / "documents" / shard_name(self._shards), self._documents)
            self._shards += 1
        write_json_lines(self.out.path / ANSWERS / f"{self._number:05d}.jsonl", self._answers)
        write_ledger(self.out.path / "ledger" / shard_name(self._number), self._verdicts)

    def finish(self) -> None:
        """Write the rest of the ledger. Raises EmptyOutput if too many answers are no documents."""
        self._check(1)
        if self._repeated:
            write_ledger(self.out.path / "ledger" / shard_name(self._read), self._repeated)

    def _keep(self, wanted: Wanted) -> None:
        answer = self.paid.get(wanted.key)
        assert answer is not None
        self._answers.append({"asked": wanted.key, **answer})
        self.account.taken += not self.paid.has_paid(wanted.key)
        for name in ("prompt_tokens", "completion_tokens"):
            self.account.tokens[name] += answer[name]

    def _document(self, wanted: Wanted, text: str) -> Document:
        metadata = json.loads(wanted.document.metadata or "{}")
        carried = {name: metadata[name] for name in CARRIED if name in metadata}
        about = {"synthetic": True, "model": self.config.model, "prompt": wanted.prompt}
        return Document.new(text, SOURCE.format(wanted.prompt), **carried, **about, made_from=wanted.document.id)

    def _verdict(self, wanted: Wanted, reason: str) -> Verdict:
        source = SOURCE.format(wanted.prompt)
        return Verdict(wanted.document.id, source, "removed", reason, detail=f"the answer to {wanted.prompt}")

    def _check(self, least: int) -> None:
        removed = self.account.removed
        failed = removed.total() - removed["repeated_request"]
        answers = failed + self.account.made
        if answers >= least and failed > self.config.max_failed_share * answers:
            del removed["repeated_request"]
            named = ", ".join(f"{number:,} {reason}" for reason, number in removed.most_common())
            raise EmptyOutput(
                f"{failed:,} of {answers:,} answers of {self.config.model} are no documents ({named}). "
                f"The first: {harmless('; '.join(self._failed))}.",
                "Change synthesise.prompts, raise synthesise.max_new_tokens if answers are unfinished, or raise "
                "synthesise.max_failed_share. All answers are kept.",
            )
