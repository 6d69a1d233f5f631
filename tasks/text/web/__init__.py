"""Text of web pages. Here rather than in `download`, as its process loads no more than it needs.

encoding.py  the encoding of a page
extract.py   main text and metadata of a page
"""
