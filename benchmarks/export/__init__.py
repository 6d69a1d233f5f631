"""What a release loses by its formats: `python -m benchmarks.export.NAME`.

four_bits.py  perplexity of a model rounded to 4 and 8 bits, by rounding alone, GPTQ, AWQ
"""
