"""Runs tasks of lm-evaluation-harness (Gao et al. 2021) by name for `download` and `evaluate`: their definitions are
unchanged, their data lies in the artifact.

definitions.py  where a task is defined, and the digest of its definition
data.py         the one seam through which the harness gets its data: only what was prepared
config.py       a task in a profile
fingerprint.py  digests that identify a task before its data is read
answers.py      whether the data allow answers to be judged
failures.py     errors of definitions, reported as the user can fix them
code/           benchmarks that run programs
sentences.py    sentence ends and languages, which the code of IFEval needs
environment.py  skips the harness's description of the machine
prepare.py      `download`: the data of a task, and its questions for the contamination check
"""
