"""Texts that are hard on code that reads bytes: every length of UTF-8, borders of tables and of blocks, repeats."""

from __future__ import annotations

from hypothesis import strategies as st

# First and last character of each length, the end of the tables (0x40000), marks, folds to several, all white space
BORDERS = "\x00\x1f \x7f\x80\x85\xa0\u07ff\u0800\u2028\u3000\ud7ff\ue000\uffff\U00010000\U0003ffff\U00040000\U0010ffff"
FOLDS = "ßİſK\u0301\u0327ﬁςΣ\u1112\u1161\u11ab"
PIECES = st.one_of(
    st.text(st.sampled_from(BORDERS + FOLDS + "aB1_.,-\n\r\t"), max_size=24),
    st.text(max_size=16),
    st.sampled_from(["", "a", "\n" * 9, "a" * 129, "word " * 9, "1.1.1.1.1", "a\r\nb\n\nc", "😀" * 17, "日本語 " * 5]),
)
TEXTS = st.lists(PIECES, max_size=4).map("".join)
