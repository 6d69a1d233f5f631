"""The results of a user's function, checked, as columns of a side file.

A function that breaks its contract (a missing column, a wrong length, a value that isn't a number) ends the run, since
no document is to blame. A document that the function fails on, with an exception or a NaN, is left without values. The
column `error` says why, the first rule that needs a value quarantines the document, and the ledger quotes the error.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from storage.errors import SourceError
from tasks.filter.signals.config import ERROR, PythonSignalConfig
from tasks.stage.user_function import Caught, Function, load

COLUMNS = ("text", "id", "source", "metadata")
MANY = 16  # documents: if all of at least this many fail, the function is to blame
CLOSE = 1e-6  # relative: vectorised code may round differently for other batches

Values = dict[str, list[float | None]]


def measure_with(
    config: PythonSignalConfig, digests: str, texts: pa.Array, ids: pa.Array, sources: pa.Array, metadata: pa.Array
) -> pa.RecordBatch:
    """The columns of the function for each document, and `error`. `digests` are those of the sources, as JSON.

    Raises SourceError for a function that breaks its contract, or fails on every document.
    """
    schema = pa.schema([*((name, pa.float64()) for name in config.columns), (ERROR, pa.string())])
    if not len(texts):
        return _empty(schema)
    function = _loaded(config.model_dump_json(), digests)
    rows = _arguments(config, texts, ids, sources, metadata)
    names = ids.to_pylist()
    with Caught() as caught:
        returned = function(rows)
    if caught.error is None:
        values, errors = _check(config, returned, names)
        _check_one(config, function, rows, names, values)
    else:
        values, errors = _one_by_one(config, function, rows, names)
    columns = [pa.array(values[name], pa.float64()) for name in config.columns]
    return pa.record_batch([*columns, pa.array(errors, pa.string())], schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in schema], schema)


@functools.cache
def _loaded(config: str, digests: str) -> Function:
    return load(PythonSignalConfig.model_validate_json(config), json.loads(digests))


def _arguments(
    config: PythonSignalConfig, texts: pa.Array, ids: pa.Array, sources: pa.Array, metadata: pa.Array
) -> list[Any]:
    if config.gets == "texts":
        return list(texts.to_pylist())
    columns = zip(*(column.to_pylist() for column in (ids, texts, sources, metadata)), strict=True)
    return [{"id": i, "text": t, "source": s, "metadata": json.loads(m or "{}")} for i, t, s, m in columns]


def _one_by_one(
    config: PythonSignalConfig, function: Function, rows: Sequence[Any], names: Sequence[str]
) -> tuple[Values, list[str | None]]:
    """Call the function for each document by itself, after it failed on all together."""
    values: Values = {name: [] for name in config.columns}
    errors: list[str | None] = []
    for row, name in zip(rows, names, strict=True):
        with Caught() as caught:
            returned = function([row])
        if caught.error is None:
            own, (error,) = _check(config, returned, [name])
        else:
            own, error = {column: [None] for column in config.columns}, caught.message
        for column in config.columns:
            values[column] += own[column]
        errors.append(error)
    if len(names) >= MANY and all(errors):
        raise SourceError(
            f"{config.where} fails on each of {len(names):,} documents, the first of them {names[0]}: {errors[0]}.",
            "Try the function by itself on some texts.",
        )
    return values, errors


def _check(config: PythonSignalConfig, returned: Any, names: Sequence[str]) -> tuple[Values, list[str | None]]:
    """The numbers that a call returned, and why a document lacks them. Raises SourceError."""
    if not isinstance(returned, Mapping) or set(returned) != set(config.columns):
        got = f"the columns {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else _kind(returned)
        raise _broken(config, f"returns {got} for the batch that begins with document {names[0]}")
    values: Values = {}
    errors: list[str | None] = [None] * len(names)
    for column in config.columns:
        sequence = returned[column]
        with Caught() as caught:
            numbers = sequence.tolist() if hasattr(sequence, "tolist") else list(sequence)
        if caught.error is not None or isinstance(sequence, str | bytes | Mapping) or not isinstance(numbers, list):
            raise _broken(config, f"returns {_kind(sequence)} as {column} for the batch that begins with {names[0]}")
        if len(numbers) != len(names):
            raise _broken(
                config,
                f"returns {len(numbers)} values as {column} for {len(names)} documents, the first of them {names[0]}",
            )
        values[column] = [_number(config, column, value, name) for value, name in zip(numbers, names, strict=True)]
        for place, value in enumerate(values[column]):
            if value is not None and not math.isfinite(value):
                errors[place] = errors[place] or f"{column} is {value}"
    for place, error in enumerate(errors):
        if error:
            for column in config.columns:
                values[column][place] = None
    return values, errors


def _number(config: PythonSignalConfig, column: str, value: Any, name: str) -> float | None:
    value = value.item() if hasattr(value, "item") else value  # numpy's and torch's numbers
    if value is None:
        return None
    if not isinstance(value, bool | int | float):
        raise _broken(config, f"returns {_kind(value)} as {column} of document {name}")
    with Caught() as caught:
        return float(value)
    assert caught.error is not None
    return math.inf  # an integer beyond the range of floats


def _check_one(
    config: PythonSignalConfig, function: Function, rows: Sequence[Any], names: Sequence[str], values: Values
) -> None:
    """The last document must get the same values by itself as in its batch. Otherwise its values would depend on the
    shards. An error of this call doesn't count against the document."""
    with Caught() as caught:
        returned = function([rows[-1]])
    single, _ = ({}, None) if caught.error is not None else _check(config, returned, names[-1:])
    for column, (value,) in single.items():
        in_batch = values[column][-1]
        same = value == in_batch or (
            value is not None and in_batch is not None and math.isclose(value, in_batch, rel_tol=CLOSE, abs_tol=CLOSE)
        )
        if not same:
            raise _broken(
                config, f"gives document {names[-1]} {in_batch} as {column} in its batch, but {value} by itself"
            )


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _broken(config: PythonSignalConfig, what: str) -> SourceError:
    return SourceError(
        f"{config.where} {what}.",
        f"It must return a mapping from {', '.join(config.columns)} to a sequence, with a number, a bool or None for "
        "each document, which depends only on that document.",
    )
