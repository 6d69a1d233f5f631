"""How a stage shows itself: progress while it works, then tables, figures and a page in Prefect.

progress.py  what a running stage reports to its observer
pages.py     how a task of Prefect ends, and its page of Markdown
figures.py   figures whose bytes depend only on the numbers
"""
