"""Documents that say the same in other words, by their embeddings: SemDeDup (Abbas et al. 2023).

config.py    the settings of the model and the clusters
source.py    checks the model's files
encoder.py   embeds documents
embed.py     writes the embeddings of all documents to files, one per shard
clusters.py  k-means over a sample
compare.py   compares the documents of a cluster
rules.py     the threshold
stage.py     the stages
family.py    the filter family
"""
