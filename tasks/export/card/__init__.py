"""What a release says of itself.

page.py          the model card: README.md, as a model hub renders it
front_matter.py  its head for machines: licence, languages, data sets, scores
usage.py         how each format is used, and by which programs
licences.py      LICENSE and NOTICE, and what a licence of the data asks of whoever passes weights on
modelfile.py     Ollama's Modelfile
provenance.py    what the stages before have to say of data and training, as a part of the config
"""
