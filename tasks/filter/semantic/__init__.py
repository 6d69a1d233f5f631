"""Documents that say the same in other words, by their embeddings: SemDeDup (Abbas et al. 2023).

config.py    the settings of the model and the clusters
encoder.py   embeds documents
embed.py     writes the embeddings of all documents to files, one per shard
clusters.py  k-means over a sample
compare.py   compares the documents of a cluster
stage.py     the stages, and the checks of the model's files
family.py    the filter family, and its threshold
"""
