"""A run as one page: gathered from the store, then drawn.

lineage.py         the artifacts that one was made of
data.py            documents: kept, removed and why, sources, languages, lengths, copies
training.py        vocabulary, tokens, curves, and what each training changed
results.py         scores and formats
costs.py           time, memory, energy and money
report.py          all of these as one JSON value
run_page.py        that value as sections
model_sections.py  those on models
charts.py          charts in Vega-Lite
graph.py           a graph in layers
page.py            sections as one file, for any page
"""
