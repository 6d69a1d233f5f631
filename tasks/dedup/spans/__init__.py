"""Repeated spans: text that several documents share is removed from all but one of them."""
