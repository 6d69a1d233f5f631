"""Checks: the subject, its state, and what to do about it.

check.py         one check
installation.py  the checks of an installation
extras.py        the extras, and which stage needs which
quiet.py         settings that keep libraries from sending anything anywhere
dependencies.py  the packages of the installation: versions, licences, who requires them
"""
