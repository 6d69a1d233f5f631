"""The votes of readers.

feedback.py     votes as rows that `download` reads
"""

from tasks.serve.pages.feedback import Feedback

__all__ = ["Feedback"]
