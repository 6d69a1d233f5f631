"""Files that hold several files, or rows in binary form.

members.py   archives: which members are safe and can be read, samples of WebDataset, their rows
tar.py       the members of a tar archive, past what is damaged
zips.py      the members of a ZIP archive, also of one that was cut
unpacked.py  data that is unpacked as it is read, with a limit for bombs
arrow.py     Arrow's files and streams, such as the folders that Hugging Face's `datasets` saves
mds.py       shards of MosaicML's streaming data sets
"""
