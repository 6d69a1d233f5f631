"""A calculator: arithmetic of numbers, by Python's own syntax tree and nothing that a text could call."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

LONGEST = 200  # characters
OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class CalculationError(ValueError):
    """A text that isn't arithmetic, or has no result."""


def calculate(text: str) -> str:
    """The value of an expression: a whole number without a point, others with at most 12 digits. Raises
    CalculationError."""
    if len(text) > LONGEST:
        raise CalculationError(f"it is longer than {LONGEST} characters")
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
        return str(int(value)) if value == int(value) else f"{value:.12g}"
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        if isinstance(error, CalculationError):
            raise
        raise CalculationError("it isn't arithmetic, or too large") from None


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.operand))
    raise CalculationError("only numbers, brackets and + - * / // % are known")
