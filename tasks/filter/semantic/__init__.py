"""Documents that say the same in other words, by their embeddings: SemDeDup (Abbas et al. 2023).

config.py    the model, and the clusters
source.py    the model's files, checked
encoder.py   documents to embeddings
embed.py     the embeddings of all documents, in files beside the shards
clusters.py  k-means over a sample
compare.py   documents of a cluster compared with one another
rules.py     what is removed
stage.py     the stages
family.py    as a filter family
"""
