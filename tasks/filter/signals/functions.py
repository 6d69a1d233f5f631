"""What a user's function returns, checked, as columns of a side file.

A function that breaks its promise (a column too few, a wrong length, something that is no number) ends the run, since
no document is to blame. A document that the function fails on, by an exception or by a NaN, is left without values:
the column `error` says why, the first rule that needs a value quarantines it, and the ledger quotes the error.
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
from tasks.filter.signals.hook import Caught, Function, load

COLUMNS = ("text", "id", "source", "metadata")
MANY = 16  # documents: where each of so many fails, it is not for the documents
CLOSE = 1e-6  # relative: vectorised code may round differently for other batches

Values = dict[str, list[float | None]]


def measure_with(
    config: PythonSignalConfig, digests: str, texts: pa.Array, ids: pa.Array, sources: pa.Array, metadata: pa.Array
) -> pa.RecordBatch:
    """The columns of the function for each document, and `error`. `digests` are those of the sources, as JSON.

    Raises SourceError for a function that breaks its promise, or fails on every document.
    """
    schema = pa.schema([*((name, pa.float64()) for name in config.columns), (ERROR, pa.string())])
    if not len(texts):
        return _empty(schema)
    function = _loaded(config.model_dump_json(), digests)
    rows = _given(config, texts, ids, sources, metadata)
    names = ids.to_pylist()
    with Caught() as caught:
        returned = function(rows)
    if caught.error is None:
        values, errors = _checked(config, returned, names)
        _check_alone(config, function, rows, names, values)
    else:
        values, errors = _one_by_one(config, function, rows, names)
    columns = [pa.array(values[name], pa.float64()) for name in config.columns]
    return pa.record_batch([*columns, pa.array(errors, pa.string())], schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in schema], schema)


@functools.cache
def _loaded(config: str, digests: str) -> Function:
    return load(PythonSignalConfig.model_validate_json(config), json.loads(digests))


def _given(
    config: PythonSignalConfig, texts: pa.Array, ids: pa.Array, sources: pa.Array, metadata: pa.Array
) -> list[Any]:
    if config.gets == "texts":
        return list(texts.to_pylist())
    columns = zip(*(column.to_pylist() for column in (ids, texts, sources, metadata)), strict=True)
    return [{"id": i, "text": t, "source": s, "metadata": json.loads(m or "{}")} for i, t, s, m in columns]


def _one_by_one(
    config: PythonSignalConfig, function: Function, rows: Sequence[Any], names: Sequence[str]
) -> tuple[Values, list[str | None]]:
    """Each document alone, after the function failed on all together."""
    values: Values = {name: [] for name in config.columns}
    errors: list[str | None] = []
    for row, name in zip(rows, names, strict=True):
        with Caught() as caught:
            returned = function([row])
        if caught.error is None:
            found, (error,) = _checked(config, returned, [name])
        else:
            found, error = {column: [None] for column in config.columns}, caught.told
        for column in config.columns:
            values[column] += found[column]
        errors.append(error)
    if len(names) >= MANY and all(errors):
        raise SourceError(
            f"{config.where} fails on each of {len(names):,} documents, the first of them {names[0]}: {errors[0]}.",
            "Try it on some texts by itself.",
        )
    return values, errors


def _checked(config: PythonSignalConfig, returned: Any, names: Sequence[str]) -> tuple[Values, list[str | None]]:
    """What a call returned as numbers, and why a document has none. Raises SourceError."""
    if not isinstance(returned, Mapping) or set(returned) != set(config.columns):
        got = f"the columns {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else _kind(returned)
        raise _broken(config, f"returns {got} for the batch that begins with document {names[0]}")
    values: Values = {}
    errors: list[str | None] = [None] * len(names)
    for column in config.columns:
        given = returned[column]
        with Caught() as caught:
            found = given.tolist() if hasattr(given, "tolist") else list(given)
        if caught.error is not None or isinstance(given, str | bytes | Mapping) or not isinstance(found, list):
            raise _broken(config, f"returns {_kind(given)} as {column} for the batch that begins with {names[0]}")
        if len(found) != len(names):
            raise _broken(
                config,
                f"returns {len(found)} values as {column} for {len(names)} documents, the first of them {names[0]}",
            )
        values[column] = [_number(config, column, value, name) for value, name in zip(found, names, strict=True)]
        for place, value in enumerate(values[column]):
            if value is not None and not math.isfinite(value):
                errors[place] = errors[place] or f"{column} is {value}"
    for place, error in enumerate(errors):
        if error:
            for column in config.columns:
                values[column][place] = None
    return values, errors


def _number(config: PythonSignalConfig, column: str, value: Any, name: str) -> float | None:
    value = value.item() if hasattr(value, "item") else value  # a number of numpy's or torch's
    if value is None:
        return None
    if not isinstance(value, bool | int | float):
        raise _broken(config, f"returns {_kind(value)} as {column} of document {name}")
    with Caught() as caught:
        return float(value)
    assert caught.error is not None
    return math.inf  # an integer beyond the floats


def _check_alone(
    config: PythonSignalConfig, function: Function, rows: Sequence[Any], names: Sequence[str], values: Values
) -> None:
    """The last document alone must get what it got among others: else the shards would shape its value. An error of
    this one call is none of the document's."""
    with Caught() as caught:
        returned = function([rows[-1]])
    alone, _ = ({}, None) if caught.error is not None else _checked(config, returned, names[-1:])
    for column, (value,) in alone.items():
        among = values[column][-1]
        same = value == among or (
            value is not None and among is not None and math.isclose(value, among, rel_tol=CLOSE, abs_tol=CLOSE)
        )
        if not same:
            raise _broken(config, f"gives document {names[-1]} {among} as {column} in its batch, and {value} alone")


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _broken(config: PythonSignalConfig, what: str) -> SourceError:
    return SourceError(
        f"{config.where} {what}.",
        f"It must return a mapping from {', '.join(config.columns)} to a sequence, with a number, a bool or None for "
        "each document, which depends on that document alone.",
    )
