"""The chat page and the status page, and the votes of their readers.

files.py        the pages' files by route, with their headers
feedback.py     votes as rows that `download` reads
static/         HTML, CSS and JavaScript, served as they are
"""

from tasks.serve.pages.feedback import Feedback
from tasks.serve.pages.files import PageFile, page_files

__all__ = ["Feedback", "PageFile", "page_files"]
