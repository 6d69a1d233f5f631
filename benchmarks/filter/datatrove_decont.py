"""datatrove's `NGramsDecontFilter`, run by the peers' own environment: `datatrove_decont.py DOCUMENTS BENCHMARKS`.

The index is made by the code of its indexer, without the run of lighteval that it wants. Questions are planted, and
prompts cut, as `contamination.py` does it; no import of the project here.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from datatrove.data import Document
from datatrove.pipeline.decont import NGramsDecontConfig, NGramsDecontFilter
from datatrove.pipeline.decont.n_grams import NGramsDecontIndexer

NGRAM, PLANTED = 13, 50
PROMPT = re.compile(r"^\s*Question:|\bAnswer:\s*$")


def main() -> None:
    """Filter the texts of a folder and print the CPU seconds and the documents that were found."""
    folder, benchmarks = Path(sys.argv[1]), Path(sys.argv[2])
    decont = NGramsDecontFilter(str(benchmarks), NGramsDecontConfig(n_grams=NGRAM, find_query_ngrams=True))
    decont._index_hashes = {}
    asked = []
    for path in sorted(benchmarks.glob("*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            query, gold = PROMPT.sub("", row["query"]), row["choices"][row["gold"]]
            asked.append(f"{query} {gold}")
            for key in NGramsDecontIndexer.compute_hashes(decont, gold, query):
                decont._index_hashes[key] = path.stem
    texts = [text for path in sorted(folder.glob("*.parquet")) for text in pq.read_table(path)["text"].to_pylist()]
    for number in range(0, len(texts), PLANTED):
        texts[number] += f" {asked[number * 7919 % len(asked)]}"
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    started = time.process_time()
    found = [number for number, document in enumerate(documents) if decont.filter(document) is not True]
    print(json.dumps({"seconds": time.process_time() - started, "found": found}))


if __name__ == "__main__":
    main()
