"""Benchmarks that run programs: pass@k, and the harness's code tasks in the sandbox, without the hub.

pass_at_k.py  the unbiased estimator, and its standard error
code_eval.py  the metric of humaneval and mbpp
"""

from tasks.harness.code.code_eval import sandboxed_code_eval
from tasks.harness.code.pass_at_k import PassAtK, mean_pass_at_k, pass_at_k

__all__ = ["PassAtK", "mean_pass_at_k", "pass_at_k", "sandboxed_code_eval"]
