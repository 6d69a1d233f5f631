"""The divergence of a student's next-token distribution from its teacher's, for each token.

Shapes: N tokens, V vocabulary, K likeliest tokens.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["forward", "reverse", "jsd"]
ROUNDING = 1e-6  # of a sum of probabilities in float32


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


def divergence_of_top(student_NV: Tensor, ids_NK: Tensor, logs_NK: Tensor) -> Tensor:
    """KL(teacher ‖ student) (N,) in nats, of the student's logits and of log-probabilities of some of the teacher's
    tokens. All others are one event for both, so it is at most the KL over the vocabulary, and equal to it if no other
    is left."""
    student, teacher = torch.log_softmax(student_NV.float(), -1), logs_NK.float()
    nats = (teacher.exp() * (teacher - student.gather(-1, ids_NK))).sum(-1)
    if ids_NK.shape[-1] == student.shape[-1]:
        return nats
    rest = 1 - teacher.exp().sum(-1)
    rest_of_student = student.scatter(-1, ids_NK, -torch.inf).logsumexp(-1)
    return nats + torch.where(rest > ROUNDING, rest * (rest.clamp(min=ROUNDING).log() - rest_of_student), 0.0)


def _kl(log_p_NV: Tensor, log_q_NV: Tensor) -> Tensor:
    return (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(-1)
