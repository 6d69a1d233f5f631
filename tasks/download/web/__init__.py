"""Web archives: pages as documents.

sections.py  a file as stretches that begin with a record, however it is compressed, past what is damaged
records.py   the records of WARC, WET and ARC, each with its offset
pages.py     what came of every page
"""
