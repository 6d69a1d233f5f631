"""A run as one page: gathered from the store, then drawn.

lineage.py          the artifacts that one was made of
reading.py          values of manifests, whatever their form
data.py             documents: kept, removed and why, sources, languages, lengths, copies
training.py         vocabulary, tokens, curves, and what each training changed
results.py          scores and formats
costs.py            time, memory, energy and money
report.py           all of these as one JSON value
run_page.py         that value as sections
model_sections.py   those on models
differences.py      two runs
comparison_page.py  their page
matrices/           pages of many runs: an ablation, a ladder, a mixture
in_release.py       the report that goes out with a release
drawing/            pages in general
"""
