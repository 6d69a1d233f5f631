"""Dumps of sites and collections: articles, questions, books and papers as documents.

read.py           a dump by its format, and what identifies what reads it
packed.py         the bytes of a file, however it is packed, past what is damaged
wikipedia.py      articles of MediaWiki
stackexchange.py  questions with their answers
gutenberg.py      books of Project Gutenberg
arxiv.py          sources of papers
"""
