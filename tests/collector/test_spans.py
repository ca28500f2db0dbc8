"""Facts as spans: what is written many at once is what one by one would have been."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from collector.batch import Batch, Fact, Subject
from collector.store.frame import FrameStore

START = datetime(2026, 1, 5, tzinfo=UTC)
CARDS = tuple(Subject("gpu", "test", "node-a", name) for name in ("GPU-0", "GPU-1"))

observations = st.lists(
    st.builds(
        lambda card, name, value, minute: Fact(card, name, value, START + timedelta(minutes=minute)),
        st.sampled_from(CARDS),
        st.sampled_from(("model", "ordinal")),
        st.sampled_from(("a", "b", None)),
        st.integers(0, 6),
    ),
    max_size=12,
)


def spans(batches: list[list[Fact]]) -> list[tuple[object, ...]]:
    facts = FrameStore.of_batches([Batch(facts=facts) for facts in batches]).facts()
    facts["to"] = facts["to"].astype(object).where(facts["to"].notna(), None)
    return [tuple(row) for row in facts.itertuples(index=False)]


@given(observations)
def test_one_batch_or_many_give_the_same_spans(facts: list[Fact]) -> None:
    assert spans([facts]) == spans([[fact] for fact in facts])


def test_a_span_that_was_extended_to_an_earlier_start_ends_where_the_next_begins() -> None:
    card = CARDS[0]
    told = [("a", 10), ("a", 7), ("b", 12)]
    rows = spans([[Fact(card, "model", value, START + timedelta(minutes=at))] for value, at in told])
    assert [(row[7], row[8], row[9]) for row in rows] == [
        ("a", START + timedelta(minutes=7), START + timedelta(minutes=12)),
        ("b", START + timedelta(minutes=12), None),
    ]
