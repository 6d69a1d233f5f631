"""Packed or padded, a step has the conversations of its global batch, each once."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.posttrain.conversations.layout import packed, padded, tokens_and_places

CONTEXT = 32


@settings(max_examples=100, deadline=None)
@given(data=st.data(), processes=st.integers(1, 3), rows=st.integers(1, 4), times=st.integers(1, 4))
def test_each_step_has_its_conversations_once_in_rows_that_fit(
    data: st.DataObject, processes: int, rows: int, times: int
) -> None:
    batch = processes * rows * times
    lengths = data.draw(st.lists(st.integers(2, CONTEXT), min_size=batch, max_size=3 * batch))
    lengths = lengths[: len(lengths) // batch * batch]
    layout = packed(lengths, batch, CONTEXT, rows, processes)
    assert layout == packed(lengths, batch, CONTEXT, rows, processes)
    assert layout.micro_steps <= times, "not more micro-batches than without packing"
    steps = len(lengths) // batch
    for process in range(processes):
        assert len(layout.of_process(process)) == steps * layout.micro_steps
    for step in range(steps):
        made = layout.of_steps(step, step + 1)
        places = sorted(chain.from_iterable(chain.from_iterable(made)))
        assert places == list(range(step * batch, (step + 1) * batch))
        assert all(1 <= len(micro_batch) <= rows for micro_batch in made)
        assert all(sum(lengths[place] for place in row) <= CONTEXT for row in chain.from_iterable(made))


def test_packing_removes_the_padding_of_uneven_conversations() -> None:
    lengths = [8, 120, 30, 60, 15, 9, 44, 98] * 32
    one_a_row = padded(len(lengths), 8, 4, 1)
    tokens, places = tokens_and_places(one_a_row.batches, lengths)
    assert tokens == sum(lengths)
    assert 1 - tokens / places > 0.5
    layout = packed(lengths, 32, 128, 8, 1)
    tokens, places = tokens_and_places(layout.batches, lengths)
    assert tokens == sum(lengths)
    assert 1 - tokens / places < 0.05
    assert layout.micro_steps == 2, "in half the forward passes"
