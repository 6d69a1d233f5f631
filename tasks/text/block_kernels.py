"""Blocks of 64 bytes, a vector instruction or a few for each question about them, compiled by numba.

A question is answered by a mask: bit k says whether it holds of byte k, as in simdjson (Langdale and Lemire 2019).
Numba finds such instructions in no loop by itself, so they are written here as LLVM's vectors, which exist for every
CPU. Nothing checks bounds: a block must lie within the array.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK, LANES, FLOATS = 64, 8, 16
OFFSET, PRIME = 0xCBF29CE484222325, 0x100000001B3  # of FNV-1a
BYTE, VECTOR = ir.IntType(8), ir.VectorType(ir.IntType(8), BLOCK)


def _place(context, builder, kind, array, at, wanted):
    """The address of an array's element, as that of a `wanted`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), wanted.as_pointer())


def _splat(value):
    return ir.Constant(VECTOR, [value] * BLOCK)


def _between(builder, block, first, last):
    """Which bytes are from `first` to `last`."""
    return builder.icmp_unsigned("<=", builder.sub(block, _splat(first)), _splat(last - first))


def _among(builder, block, characters):
    """Which bytes are one of these."""
    found = builder.icmp_unsigned("==", block, _splat(characters[0]))
    for character in characters[1:]:
        found = builder.or_(found, builder.icmp_unsigned("==", block, _splat(character)))
    return found


def _question(answer):
    """An intrinsic (data, at) that returns the mask of what `answer` says of each byte of a block."""

    def mask(typing, data, at):
        def generate(context, builder, signature, values):
            place = _place(context, builder, signature.args[0], values[0], values[1], VECTOR)
            return builder.bitcast(answer(builder, builder.load(place, align=1)), ir.IntType(64))

        return types.uint64(data, types.int64), generate

    return intrinsic(mask)


def _word(builder, block):
    letter = _between(builder, builder.or_(block, _splat(0x20)), ord("a"), ord("z"))
    digit = _between(builder, block, ord("0"), ord("9"))
    return builder.or_(builder.or_(letter, digit), _among(builder, block, b"_"))


def _space(builder, block):
    blank = builder.or_(_among(builder, block, b" "), _between(builder, block, 9, 13))
    return builder.or_(blank, _between(builder, block, 0x1C, 0x1F))


def _fasttext_break(builder, block):
    return builder.or_(_among(builder, block, b" \0"), _between(builder, block, 9, 13))


def _unprintable(builder, block):
    control = builder.and_(_between(builder, block, 0, 31), builder.icmp_unsigned("!=", block, _splat(9)))
    return builder.or_(control, _between(builder, block, 127, 255))


beyond_ascii = _question(lambda builder, block: _between(builder, block, 128, 255))
ascii_words = _question(_word)  # letters, digits and underscores
ascii_spaces = _question(_space)
unprintable = _question(_unprintable)  # neither printable ASCII nor a tab
fasttext_breaks = _question(_fasttext_break)  # what ends a word in fastText
blanks = _question(lambda builder, block: _between(builder, block, 0, 32))
newlines = _question(lambda builder, block: _among(builder, block, b"\n"))
colons = _question(lambda builder, block: _among(builder, block, b":"))
slashes = _question(lambda builder, block: _among(builder, block, b"/"))
bars = _question(lambda builder, block: _among(builder, block, b"|"))
tags_or_mail = _question(lambda builder, block: _among(builder, block, b"<@"))
ws = _question(lambda builder, block: _among(builder, block, b"wW"))
capitals = _question(lambda builder, block: _between(builder, block, ord("A"), ord("Z")))
small_letters = _question(lambda builder, block: _between(builder, block, ord("a"), ord("z")))
wrapped = _question(  # what may begin something that `tasks.filter.contamination.plain_kernels` replaces
    lambda builder, block: builder.or_(_among(builder, block, b"\\&%_[<-\n"), _between(builder, block, 128, 255))
)


@intrinsic
def copy_block(typing, data, at, out, to):
    """Write the block of `data` at `at` to `out` at `to`."""

    def generate(context, builder, signature, values):
        block = builder.load(_place(context, builder, signature.args[0], values[0], values[1], VECTOR), align=1)
        builder.store(block, _place(context, builder, signature.args[2], values[2], values[3], VECTOR), align=1)
        return context.get_dummy_value()

    return types.none(data, types.int64, out, types.int64), generate


@intrinsic
def fold_block(typing, data, at, lower, space, out, to):
    """`copy_block` with ASCII's capitals in lower case, if `lower`, and all of its white space as " ", if `space`."""

    def generate(context, builder, signature, values):
        data, at, lower, space, out, to = values
        block = builder.load(_place(context, builder, signature.args[0], data, at, VECTOR), align=1)
        nothing = _splat(0)
        small = builder.or_(block, _splat(0x20))
        changed = builder.select(_between(builder, block, ord("A"), ord("Z")), small, block)
        block = builder.select(builder.icmp_unsigned("!=", lower, ir.Constant(lower.type, 0)), changed, block)
        changed = builder.select(_space(builder, block), builder.or_(nothing, _splat(0x20)), block)
        block = builder.select(builder.icmp_unsigned("!=", space, ir.Constant(space.type, 0)), changed, block)
        builder.store(block, _place(context, builder, signature.args[4], out, to, VECTOR), align=1)
        return context.get_dummy_value()

    return types.none(data, types.int64, types.int64, types.int64, out, types.int64), generate


@intrinsic
def read_eight(typing, data, at):
    """The eight bytes of `data` from `at` on, the first lowest."""

    def generate(context, builder, signature, values):
        number = ir.IntType(64)
        return builder.load(_place(context, builder, signature.args[0], values[0], values[1], number), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def prefetch(typing, data, at):
    """Bring the cache line of `data` at `at` near, without waiting for it."""

    def generate(context, builder, signature, values):
        place = _place(context, builder, signature.args[0], values[0], values[1], BYTE)
        number = ir.IntType(32)
        name, kind = "llvm.prefetch.p0i8", ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [place, number(0), number(3), number(1)])  # to read, into every cache, of data
        return context.get_dummy_value()

    return types.none(data, types.int64), generate


@intrinsic
def add_floats(typing, data, at, more, place):
    """Add the sixteen float32 of `more` from `place` on to those of `data` from `at` on."""

    def generate(context, builder, signature, values):
        floats = ir.VectorType(ir.FloatType(), FLOATS)
        sums = _place(context, builder, signature.args[0], values[0], values[1], floats)
        added = builder.load(_place(context, builder, signature.args[2], values[2], values[3], floats), align=4)
        builder.store(builder.fadd(builder.load(sums, align=4), added), sums, align=4)
        return context.get_dummy_value()

    return types.none(data, types.int64, more, types.int64), generate


def _counted(count):
    def number(typing, mask):
        def generate(context, builder, signature, values):
            return count(builder, values[0])

        return types.int64(types.uint64), generate

    return intrinsic(number)


ones = _counted(lambda builder, mask: builder.ctpop(mask))  # bits that are set
zeros = _counted(
    lambda builder, mask: builder.cttz(mask, ir.Constant(ir.IntType(1), 0))
)  # below the lowest set bit, or 64


@njit(cache=True, nogil=True, inline="always")
def lowest(count):
    """The mask of the first `count` bytes, at most 64."""
    return np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - count) if count else np.uint64(0)


@njit(cache=True, nogil=True, _nrt=False, inline="always")
def first_in(question, data, i, end):
    """The first byte from `i` on of which a question's answer is yes, or `end`. `data` has at least a block."""
    last = len(data) - BLOCK
    while i < end:
        at = min(i, last)
        found = question(data, at) >> np.uint64(i - at)
        if found:
            return min(i + zeros(found), end)
        i = at + BLOCK
    return end


@njit(cache=True, nogil=True, inline="always")
def word_at(start, size):
    """A word's place, as `hash_words` takes it."""
    return np.uint64(start) << np.uint64(32) | np.uint64(size)


@intrinsic
def hash_words(typing, data, words, first):
    """Replace `words[first:first + LANES]`, places in `data`, by the words' FNV-1a hashes (Fowler, Noll and Vo 1991).

    A hash takes its bytes one after the other, so those of several words are computed side by side. Reads up to three
    bytes after a word.
    """

    def generate(context, builder, signature, values):
        wide = ir.VectorType(ir.IntType(64), LANES)
        every = lambda number: ir.Constant(wide, [number] * LANES)  # noqa: E731
        bytes = context.make_array(signature.args[0])(context, builder, values[0]).data
        place = _place(context, builder, signature.args[1], values[1], values[2], wide)
        places = builder.load(place, align=8)
        before, steps, after = builder.block, builder.append_basic_block("steps"), builder.append_basic_block("after")
        builder.branch(steps)
        builder.position_at_end(steps)
        hashes, starts, left = (builder.phi(wide) for _ in range(3))
        hashes.add_incoming(every(OFFSET), before)
        with builder.goto_block(before):
            starts.add_incoming(builder.lshr(places, every(32)), before)
            left.add_incoming(builder.and_(places, every(0xFFFFFFFF)), before)
        four = every(0)
        for lane in range(LANES):
            index = ir.Constant(ir.IntType(32), lane)
            here = builder.gep(bytes, [builder.extract_element(starts, index)])
            read = builder.load(builder.bitcast(here, ir.IntType(32).as_pointer()), align=1)
            four = builder.insert_element(four, builder.zext(read, ir.IntType(64)), index)
        found = hashes
        for step in range(4):
            byte = builder.and_(builder.lshr(four, every(8 * step)), every(0xFF))
            stepped = builder.mul(builder.xor(found, byte), every(PRIME))
            found = builder.select(builder.icmp_signed(">", left, every(step)), stepped, found)
        longer = builder.icmp_signed(">", left, every(4))
        hashes.add_incoming(found, steps)
        starts.add_incoming(builder.select(longer, builder.add(starts, every(4)), starts), steps)
        left.add_incoming(builder.sub(left, every(4)), steps)
        again = builder.icmp_unsigned(
            "!=", builder.bitcast(longer, ir.IntType(LANES)), ir.Constant(ir.IntType(LANES), 0)
        )
        builder.cbranch(again, steps, after)
        builder.position_at_end(after)
        builder.store(found, place, align=8)
        return context.get_dummy_value()

    return types.none(data, words, types.int64), generate
