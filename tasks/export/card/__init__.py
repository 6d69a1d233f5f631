"""The documents of a release: model card, licences, Modelfile.

page.py          the model card: README.md, as a model hub renders it
front_matter.py  its head for machines: licence, languages, data sets, scores
usage.py         how each format is used, and by which programs
licences.py      LICENSE and NOTICE, and what a licence of the data requires of whoever passes the weights on
modelfile.py     Ollama's Modelfile
provenance.py    what earlier stages report of data and training, as a part of the config
"""
