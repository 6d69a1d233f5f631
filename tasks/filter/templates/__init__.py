"""Text that a host fills into templates: sentences that many of its documents have, but for names and numbers.

config.py       which sentences count as a host's templates
characters.py   what each character is to a template
kernels.py      compiled: sentences to templates
sentences.py    the sentences of a batch of documents, with the keys under which they are counted
count.py        how many documents of a host have each sentence and template, counted once over all documents
frequent.py     those of many documents, as the signals look them up, and as people read them
measure.py      the signals of a document
rules.py        what is removed
stage.py        the stages
family.py       as a filter family
"""
