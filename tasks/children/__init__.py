"""Processes that train: started, supervised, and never outliving their stage.

supervise.py  the stage's side, and the child's
launchers.py  the command that starts them, on one host or many
spec.py       what a child is told
"""
