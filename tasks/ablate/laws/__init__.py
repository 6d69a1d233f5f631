"""Scaling laws: how the loss falls with size, tokens and compute, with intervals. No Prefect, no store.

law.py fits a law to measured points and predicts, optimum.py finds the best size for a budget by three approaches,
multiplier.py says how much compute a change is worth.
"""
