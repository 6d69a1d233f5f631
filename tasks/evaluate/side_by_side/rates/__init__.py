"""Numbers with intervals from comparisons of models, only in numpy.

win_rate.py   win rates, and tests of "neither is better"
length.py     win rates at equal length
strengths.py  Bradley–Terry strengths on the scale of Elo ratings
standings.py  all of these for several models, resampled together
"""
