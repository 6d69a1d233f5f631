"""The hot loops of the n-gram model, compiled by numba: counting, smoothing, scoring.

An n-gram is identified only by a 64-bit key, a polynomial over the hashes of its words, as in KenLM's probing model
(Heafield 2011). The probability that any of a billion look-ups among a billion n-grams is wrong is 5 %. Tables are
open-addressed with linear probing. A slot is two 64-bit numbers, the key and the n-gram's data, so a look-up costs one
cache line. While counting, the data is the count (upper half) and the position of the n-gram's last word (lower half).
In the model, it is the base-10 logarithms of probability and backoff as two 32-bit floats.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tasks.text.characters import SIZE, WORD
from tasks.text.kernels import GOLDEN, code_point
from tasks.text.ngram_kernels import key_of
from tasks.text.table_kernels import HALF, locate

# Keys of the pseudo-words: start and end of a sentence, and any word unknown to the model
START = np.uint64(0xA0761D6478BD642F)
END = np.uint64(0xE7037ED1A0B428DB)
UNKNOWN = np.uint64(0x8EBC6AF09C88C6E3)
ONE = np.uint64(1 << 32)  # a count of 1, in the upper half of a slot's data


@njit(cache=True, nogil=True)
def rehash(table, larger):
    """Insert all entries of a table into an empty, larger one."""
    for slot in range(len(table)):
        if table[slot, 0] != 0:
            new = locate(larger, 0, len(larger), table[slot, 0])
            larger[new, 0] = table[slot, 0]
            larger[new, 1] = table[slot, 1]


@njit(cache=True, nogil=True)
def count_words(tokens, table):
    """Count each token. Returns the number of distinct tokens."""
    used = 0
    for p in range(len(tokens)):
        slot = locate(table, 0, len(table), tokens[p])
        used += table[slot, 0] == 0
        table[slot, 0] = tokens[p]
        table[slot, 1] += ONE
    return used


@njit(cache=True, nogil=True)
def rare_words(tokens, table, min_count, rare):
    """Mark the tokens that occur less than `min_count` times."""
    for p in range(len(tokens)):
        slot = locate(table, 0, len(table), tokens[p])
        rare[p] = (table[slot, 1] >> HALF) < np.uint64(min_count)


@njit(cache=True, nogil=True)
def count_ngrams(tokens, begin, end, tables, used):
    """Add the sentences of `tokens[begin:end]`, each from START to END, to one table per order, shortest first.

    An n-gram of the highest order, or one that begins a sentence, counts its occurrences. Any other counts the distinct
    words before it (Chen and Goodman 1998, section 3). A word is new before an n-gram exactly when the n-gram extended
    by it is new, so the descent from the longest n-gram stops at the first known one.
    """
    order = len(tables)
    keys = np.empty(order + 1, np.uint64)
    keys[0] = np.uint64(0)
    length = 0
    for p in range(begin, end):
        if tokens[p] == START:
            slot = locate(tables[0], 0, len(tables[0]), START)
            if tables[0][slot, 0] == 0:  # START is only ever a context: its count stays 0
                tables[0][slot, 0] = START
                tables[0][slot, 1] = np.uint64(p)
                used[0] += 1
            length = 1
            continue
        # An n-gram doesn't reach back beyond the start of its sentence
        longest = min(order, length + 1)
        power = np.uint64(1)
        # Keys of all n-grams that end at p, each from the one shorter by a word
        for n in range(1, longest + 1):
            keys[n] = keys[n - 1] + tokens[p - n + 1] * power
            power *= GOLDEN
        for n in range(longest, 0, -1):
            table = tables[n - 1]
            slot = locate(table, 0, len(table), keys[n])
            # Known: its own count grows, but shorter n-grams don't get a new word before them
            if table[slot, 0] == keys[n]:
                table[slot, 1] += ONE
                break
            # New: so is the word before the next shorter n-gram. Go on down
            table[slot, 0] = keys[n]
            table[slot, 1] = ONE | np.uint64(p)
            used[n - 1] += 1
        length += 1


@njit(cache=True, nogil=True)
def counts_of_counts(table, numbers):
    """Add the numbers of n-grams with count 1, 2, 3 and 4 to `numbers[1:5]`, from which the discounts follow."""
    for slot in range(len(table)):
        if table[slot, 0] != 0 and (table[slot, 1] >> HALF) < 5:
            numbers[table[slot, 1] >> HALF] += 1


@njit(cache=True, nogil=True, inline="always")
def all_known(rare, last, n):
    """Whether none of the n tokens up to and including position `last` is rare."""
    return not rare[last - n + 1 : last + 1].any()


@njit(cache=True, nogil=True)
def sum_contexts(tokens, rare, n, table, shorter, discounts, total, freed):
    """For each context (an entry of the table of n − 1 words), sum the counts of its n-grams into `total` and the mass
    that smoothing frees into `freed`: a discount per n-gram, and the whole count of an n-gram with a rare word."""
    for slot in range(len(table)):
        # Empty, or START, which is only a context
        if table[slot, 0] == 0 or table[slot, 1] < ONE:
            continue
        count = np.int64(table[slot, 1] >> HALF)
        last = np.int64(table[slot, 1] & np.uint64(0xFFFFFFFF))
        # The n-gram's words are read back from the text, at the position in its slot
        context = locate(shorter, 0, len(shorter), key_of(tokens, last - n + 1, n - 1)) if n > 1 else 0
        # Three discounts, for counts 1, 2 and 3 or more (modified Kneser-Ney)
        total[context] += count
        freed[context] += discounts[min(count, 3)] if all_known(rare, last, n) else count


@njit(cache=True, nogil=True)
def smooth(tokens, rare, n, table, shorter, discounts, total, freed, below, probabilities):
    """Interpolated probabilities of a table's n-grams (Heafield et al. 2013, section 3.4), 0 with a rare word.

    `below` are the probabilities of the table of n − 1 words.
    """
    for slot in range(len(table)):
        if table[slot, 0] == 0:
            continue
        count = np.int64(table[slot, 1] >> HALF)
        last = np.int64(table[slot, 1] & np.uint64(0xFFFFFFFF))
        if not all_known(rare, last, n):
            continue
        context, suffix = 0, 0
        if n > 1:
            context = locate(shorter, 0, len(shorter), key_of(tokens, last - n + 1, n - 1))
            suffix = locate(shorter, 0, len(shorter), key_of(tokens, last - n + 2, n - 1))
        # p(w | context) = discounted count / total + freed share × p(w | context without its first word)
        own = count - discounts[min(count, 3)]
        probabilities[slot] = (own + freed[context] * below[suffix]) / total[context]


@njit(cache=True, nogil=True)
def enter(table, probabilities, total, freed, model, logs, start, size):
    """Insert the n-grams of a table that have a probability into `size` slots of the model from `start` on.

    `total` and `freed` are those of the n-grams as contexts, and give the backoff. `logs` is the model viewed as 32-bit
    floats, four per slot.
    """
    for slot in range(len(table)):
        if probabilities[slot] > 0:
            new = locate(model, start, size, table[slot, 0])
            model[new, 0] = table[slot, 0]
            # Floats 0 and 1 of a slot are the key's bytes
            logs[new, 2] = np.log10(probabilities[slot])
            logs[new, 3] = np.log10(freed[slot] / total[slot]) if total[slot] > 0 else 0.0


@njit(cache=True, nogil=True)
def has_word(text, begin, end, kinds):
    """Whether normalised text contains a word."""
    while begin < end:
        c, used = code_point(text, begin, end)
        if c < SIZE and kinds[c] & WORD:
            return True
        begin += used
    return False


@njit(cache=True, nogil=True)
def count_tokens(text, text_ends, word_ends, kinds, tokens):
    """Count the tokens of each scanned text: its words and the end, or 0 without words, where the scanner reports 1."""
    begin, first = 0, 0
    for d in range(len(word_ends)):
        words = word_ends[d] - first
        # Only a single "word" can be the scanner's stand-in for none, so only then is the text read
        tokens[d] = words + 1 if words > 1 or has_word(text, begin, text_ends[d], kinds) else 0
        begin, first = text_ends[d], word_ends[d]


@njit(cache=True, nogil=True)
def sentences(words, starts, tokens, out):
    """Concatenate texts of `tokens[d] - 1` words from `words[starts[d]]` on, each between START and END."""
    at = 0
    for d in range(len(starts)):
        if tokens[d]:
            out[at] = START
            out[at + 1 : at + tokens[d]] = words[starts[d] : starts[d] + tokens[d] - 1]
            out[at + tokens[d]] = END
            at += tokens[d] + 1


@njit(cache=True, nogil=True)
def score(words, word_ends, tokens, model, logs, starts, scores):
    """The base-10 logarithm of each text's probability as a sentence, with `tokens` from `count_tokens`.

    `starts[n - 1]:starts[n]` are the model's slots for order n. The model has every suffix of its n-grams, so the first
    miss ends the search. The unmatched rest of the context contributes its backoffs (Katz 1987).
    """
    order = len(starts) - 1
    unknown = logs[locate(model, starts[0], starts[1] - starts[0], UNKNOWN), 2]
    opening = logs[locate(model, starts[0], starts[1] - starts[0], START), 3]
    backoffs = np.zeros(order + 1, np.float64)  # of the last 1, 2, … words before this position
    following = np.zeros(order + 1, np.float64)
    first = 0
    for d in range(len(word_ends)):
        scores[d] = 0.0
        known = 1  # words of context that the model has
        # A text starts with START as its context
        backoffs[1] = opening
        # END is at `word_ends[d]`. A text without words doesn't have a position
        last = word_ends[d] if tokens[d] else first - 1
        for place in range(first, last + 1):
            key = END if place == last else words[place]
            power = GOLDEN
            probability = np.float64(unknown)
            matched = 0
            longest = min(order, place - first + 2)
            # The longest n-gram that ends here. The key grows by the word in front
            for n in range(1, longest + 1):
                if n > 1:
                    before = place - n + 1
                    key += (START if before < first else words[before]) * power
                    power *= GOLDEN
                slot = locate(model, starts[n - 1], starts[n] - starts[n - 1], key)
                if model[slot, 0] != key:
                    break
                probability = np.float64(logs[slot, 2])
                following[n] = logs[slot, 3]
                matched = n
            # Backoffs of the contexts that are known, but not in front of this word
            for n in range(max(matched, 1), known + 1):
                probability += backoffs[n]
            # The n-grams matched here are the contexts of the next word
            known = min(matched, order - 1)
            backoffs, following = following, backoffs
            scores[d] += probability
        first = word_ends[d]
