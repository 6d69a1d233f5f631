"""What `download` and `evaluate` share of lm-evaluation-harness (Gao et al. 2021): its tasks by name, their definitions
unchanged, on data that lies in the artifact.

definitions.py  where a task is defined, and a digest of what defines it
data.py         the one seam through which the harness gets its data: what was prepared, and nothing else
config.py       a task in a profile
fingerprint.py  what identifies a task before its data are read
answers.py      whether answers can be judged by the data
failures.py     a definition that fails, told
code/           benchmarks that run programs
sentences.py    what the code of IFEval asks: where sentences end, and in which language a text is
environment.py  its description of the machine, left out
prepare.py      `download`: the data of a task, and its questions for the contamination check
"""
