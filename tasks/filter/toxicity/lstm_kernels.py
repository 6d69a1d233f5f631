"""The hot loop of a bidirectional LSTM with a maximum over time, compiled by numba: UTF-8 bytes to log-odds.

Hochreiter and Schmidhuber 1997, in Keras's form and order of gates. The input's half of the gates is a table with a row
per word, so that a step costs only the recurrent half. It takes one text at a time, without padding, so that a text's
score doesn't depend on the texts beside it.

Tensor names: V words of the vocabulary, H units a direction, G = 4 H gates (input, forget, cell, output).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Float32, Float64, Int32, Int64, UInt8
from tasks.filter.fasttext_model.word_kernels import BREAK, FNV_OFFSET, find, step
from tasks.text.kernels import decode

ONE, TWO = np.float32(1), np.float32(2)
AT_ONCE = 5  # units of the state per pass, so that the gates are read and written a fifth as often


@njit(cache=True, nogil=True, inline="always")
def sigmoid(x):
    """The logistic function."""
    return ONE / (ONE + np.exp(-x))


@njit(cache=True, nogil=True, inline="always")
def tanh(x):
    """The hyperbolic tangent from one exponential: the library's takes twice the time."""
    return TWO * sigmoid(TWO * x) - ONE


@njit(cache=True, nogil=True)
def run_direction(
    words: Int64, size: int, backwards: bool, inputs_VG: Float32, recurrent_HG: Float32, highest: Float32
) -> None:
    """Run one direction over a text of `size` words, and raise `highest` (H) to the highest output of each unit."""
    units = len(highest)
    state, cell, gates = np.zeros(units, np.float32), np.zeros(units, np.float32), np.empty(4 * units, np.float32)
    for place in range(size):
        word = words[size - 1 - place if backwards else place]
        for g in range(4 * units):
            gates[g] = inputs_VG[word, g]
        for h in range(0, units, AT_ONCE):
            a, b, c, d, e = state[h], state[h + 1], state[h + 2], state[h + 3], state[h + 4]
            for g in range(4 * units):
                gates[g] += (
                    a * recurrent_HG[h, g]
                    + b * recurrent_HG[h + 1, g]
                    + c * recurrent_HG[h + 2, g]
                    + d * recurrent_HG[h + 3, g]
                    + e * recurrent_HG[h + 4, g]
                )
        for h in range(units):
            kept = sigmoid(gates[units + h]) * cell[h]
            cell[h] = kept + sigmoid(gates[h]) * tanh(gates[2 * units + h])
            state[h] = sigmoid(gates[3 * units + h]) * tanh(cell[h])
            highest[h] = max(highest[h], state[h])


@njit(cache=True, nogil=True)
def score_texts(
    kinds: UInt8,
    slots: Int32,
    letters: UInt8,
    starts: Int64,
    forward_VG: Float32,
    forward_HG: Float32,
    backward_VG: Float32,
    backward_HG: Float32,
    hidden: Float32,
    hidden_bias: Float32,
    output: Float32,
    output_bias: float,
    data: UInt8,
    begins: Int64,
    ends: Int64,
    longest: int,
    odds: Float64,
) -> None:
    """The log-odds of each text `data[begins[p]:ends[p]]`, from the last `longest` of its known words. −∞ without any.

    The arguments from `slots` on find words (see `fasttext_model.classifier.word_table`), those from `forward_VG` on
    are the LSTM, and those from `hidden` on the two layers above it: (2 H, K), (K), (K) and a number.
    """
    units = len(forward_HG)
    ring, words = np.empty(longest, np.int64), np.empty(longest, np.int64)
    highest = np.empty(2 * units, np.float32)
    beyond = len(kinds) - 1
    for p in range(len(begins)):
        i, stop = begins[p], ends[p]
        begin, h, inside, number = i, FNV_OFFSET, False, 0
        # One turn past the end, where a break closes the last word
        while i <= stop:
            kind, used = np.uint8(BREAK), 1
            if i < stop:
                c = np.uint32(data[i])
                if c >= 128:
                    c, used = decode(data, i, stop)
                kind = kinds[min(np.int64(c), beyond)]
            if kind != BREAK:
                if not inside:
                    begin, h, inside = i, FNV_OFFSET, True
                for k in range(i, i + used):
                    h = step(h, data[k])
            elif inside:
                inside = False
                word = find(slots, letters, starts, data, begin, i, h)
                if word >= 0:
                    ring[number % longest] = word
                    number += 1
            i += used
        size = min(number, longest)
        for k in range(size):
            words[k] = ring[(number - size + k) % longest]
        if size == 0:
            odds[p] = -np.inf
            continue
        highest[:] = -ONE
        run_direction(words, size, False, forward_VG, forward_HG, highest[:units])
        run_direction(words, size, True, backward_VG, backward_HG, highest[units:])
        total = output_bias
        for k in range(len(hidden_bias)):
            value = hidden_bias[k]
            for g in range(2 * units):
                value += highest[g] * hidden[g, k]
            total += max(value, np.float32(0)) * output[k]
        odds[p] = total
