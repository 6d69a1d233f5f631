"""Tuning with eyes: the documents on which a rule's threshold decides, and what another threshold would change."""
