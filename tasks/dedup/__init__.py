"""The `dedup` stage: exact duplicates first, then near-duplicates, verified before anything is removed.

config.py         the stage's config
stage.py          the stage, and the nested stage `sketches`
run.py            the stage from the sketches on: find duplicates, check what each source loses, write the rest
forecast.py       memory and disk, predicted from the number of documents
sketch.py         the measurements of each document, taken once
kernels.py        compiled: words to shingles, signatures and SimHashes
corpus.py         all documents under comparison, read through their sketches
against.py        documents that earlier runs kept, to compare with
partitions.py          rows spilled to disk by partition
buckets.py        rows grouped by key within bounded memory
duplicates.py     the table of duplicates: of which document, by which method
clusters.py       connected components, and the document to keep of each
keeping/          the document to keep: the condition of its text, the order of preference
near_duplicates/  candidate pairs, SimHash, exact verification
spans/            text that several documents share
"""

from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import dedup

__all__ = ["DedupConfig", "dedup"]
