"""How a stage shows itself: progress while it works, then tables, figures and a page in Prefect.

progress.py  the observer that a running stage reports to
pages.py     how a Prefect task ends, and its page of Markdown
figures.py   figures whose bytes depend only on the numbers
"""
