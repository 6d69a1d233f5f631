"""Text that a host fills into templates: sentences that many of its documents share, except for names and numbers.

config.py       the settings: which sentences count as a host's templates
characters.py   classes of characters
kernels.py      compiled: sentences to templates
sentences.py    the sentences of a batch of documents, with the keys under which they are counted
count.py        counts the documents of a host that have each sentence and template, once over all documents
frequent.py     the frequent ones, as tables for the signals and as text for people
measure.py      the stages, and the signals of a document
family.py       the filter family, and its thresholds
"""
