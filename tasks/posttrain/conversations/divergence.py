"""The divergence of a student's next-token distribution from its teacher's, for each token.

Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["forward", "reverse", "jsd"]


def divergence(
    student_NV: Tensor, teacher_NV: Tensor, kind: Kind, temperature: float = 1.0, beta: float = 0.5
) -> Tensor:
    """The divergence (N,) in nats, of logits in any precision. It is multiplied by the square of the temperature, so
    that gradients keep their size (Hinton et al. 2015).

    forward is KL(teacher ‖ student), which covers all that the teacher says. reverse is KL(student ‖ teacher), which
    avoids what it would not say (Gu et al. 2024, MiniLLM). jsd is the generalised Jensen–Shannon divergence of the two
    from their mixture, in which the teacher has the weight `beta` (Agarwal et al. 2024, equation 1).
    """
    student, teacher = (torch.log_softmax(logits.float() / temperature, -1) for logits in (student_NV, teacher_NV))
    if kind == "forward":
        nats = _kl(teacher, student)
    elif kind == "reverse":
        nats = _kl(student, teacher)
    else:
        middle = torch.logaddexp(student + math.log((1 - beta) / beta), teacher) + math.log(beta)
        nats = beta * _kl(teacher, middle) + (1 - beta) * _kl(student, middle)
    return nats * temperature**2


def _kl(log_p_NV: Tensor, log_q_NV: Tensor) -> Tensor:
    return (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(-1)
