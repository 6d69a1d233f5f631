"""Inspection of a rule: the documents on which its threshold decides, and what another threshold would change."""
