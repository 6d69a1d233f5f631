"""Benchmarks that run programs: pass@k, and the harness's code tasks in the sandbox, without the hub.

pass_at_k.py  the unbiased estimator, and its standard error
code_eval.py  the metric of humaneval and mbpp
samples.py    several answers to each problem
"""

from tasks.harness.code.code_eval import sandboxed_code_eval
from tasks.harness.code.pass_at_k import PassAtK, mean_pass_at_k, pass_at_k
from tasks.harness.code.samples import sampling

__all__ = ["PassAtK", "mean_pass_at_k", "pass_at_k", "sampling", "sandboxed_code_eval"]
