"""Engines that serve a model, behind one interface. None of the inference is ours.

protocol.py     the interface: token ids in, pieces of text out
"""
