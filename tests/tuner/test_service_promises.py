"""Promises of workloads: configuration over annotations over defaults, as they stood last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import pytest

from collector.batch import Batch, Fact
from collector.declarations import Objective, ResolvedWorkload, WorkloadDeclaration
from collector.store import FrameStore
from tests.tuner.service_rows import promise
from tuner.service.promises import is_protected, objective_share, promises_of, resolve_promises

NO_FACTS = FrameStore.of_batches([]).facts()


def resolve(*facts: Fact, configured: Sequence[WorkloadDeclaration] = ()) -> ResolvedWorkload:
    store = FrameStore.of_batches([Batch(facts=[fact]) for fact in facts])
    return promises_of(store.facts(), [("c", "t", "w")], configured)["c", "t", "w"]


def test_configuration_wins_over_annotations_and_these_over_defaults_field_by_field() -> None:
    found = resolve(
        promise("service_class", "offline"),
        promise("weight", "3"),
        promise("floor", "0.1"),
        configured=[WorkloadDeclaration(match="w", weight=2.0)],
    )
    said = found.declaration
    assert (said.service_class, said.weight, said.floor, said.protected, said.objective) == (
        "offline",
        2.0,
        0.1,
        False,
        None,
    )
    assert found.declared
    assert found.origin == {
        "service_class": "annotation",
        "weight": "config",
        "floor": "annotation",
        "protected": "default",
        "checkpoint_seconds": "default",
        "objective": "default",
    }


def test_an_objective_is_read_from_its_fact() -> None:
    said = Objective(quantity="ttft", share=0.95, bound_seconds=0.25, window_seconds=120.0)
    found = resolve(promise("service_class", "online"), promise("objective", said.model_dump_json()))
    assert found.declaration.objective == said
    assert objective_share(found) == 0.95


def test_without_an_objective_there_is_no_share() -> None:
    assert math.isnan(objective_share(None))
    assert math.isnan(objective_share(resolve(promise("service_class", "offline"))))


def test_facts_that_nobody_declared_are_no_promise_and_leave_it_protected() -> None:
    found = resolve(promise("service_class", "offline", said=False), promise("weight", "5", said=False))
    assert not found.declared
    assert (found.declaration.service_class, found.declaration.weight) == ("online", 1.0)
    assert set(found.origin.values()) == {"default"}


def test_other_facts_of_a_workload_are_no_promises() -> None:
    assert not resolve(promise("colour", "blue")).declared


def test_the_later_of_two_annotations_holds() -> None:
    assert resolve(promise("weight", "2", 0), promise("weight", "4", 5)).declaration.weight == 4.0


def test_a_promise_that_was_taken_back_holds_no_more() -> None:
    online = Objective(bound_seconds=0.1)
    found = resolve(
        promise("service_class", "online", 0),
        promise("objective", online.model_dump_json(), 0),
        promise("service_class", "offline", 10),
        promise("objective", None, 10),
    )
    assert (found.declaration.service_class, found.declaration.objective) == ("offline", None)


def test_promises_that_were_all_taken_back_hold_no_more_while_the_workload_lives() -> None:
    found = resolve(
        promise("weight", "2", 0),
        promise("service_class", "offline", 0),
        promise("weight", None, 10),
        promise("service_class", "unknown", 10, said=False),
    )
    assert not found.declared
    assert (found.declaration.service_class, found.declaration.weight) == ("online", 1.0)


def test_promises_of_work_that_is_gone_are_those_it_had_at_its_end() -> None:
    found = resolve(
        promise("service_class", "offline", 0),
        promise("weight", "2", 0),
        promise("weight", "4", 5),
        promise("service_class", None, 10),
        promise("weight", None, 10),
    )
    assert (found.declaration.service_class, found.declaration.weight) == ("offline", 4.0)


@pytest.mark.parametrize(
    "annotation",
    [promise("objective", Objective(bound_seconds=0.1).model_dump_json()), promise("weight", "heavy")],
)
def test_annotations_that_contradict_the_configuration_count_as_none(annotation: Fact) -> None:
    found = resolve(annotation, configured=[WorkloadDeclaration(match="w", service_class="offline")])
    assert (found.declaration.service_class, found.declaration.objective, found.declaration.weight) == (
        "offline",
        None,
        1.0,
    )


def test_holders_are_those_of_the_rows_without_nobody_and_the_unknown() -> None:
    rows = pd.DataFrame(
        {
            "cluster": ["c", "c", "c", "c", "c"],
            "tenant": ["a", "a", "none", "a", ""],
            "workload": ["train", "train", "none", "unknown", ""],
        }
    )
    assert set(resolve_promises(NO_FACTS, rows, ())) == {("c", "a", "train")}


def test_a_workload_with_an_annotation_needs_no_slice() -> None:
    store = FrameStore.of_batches([Batch(facts=[promise("service_class", "offline", workload="b/waits")])])
    assert set(promises_of(store.facts(), [], ())) == {("c", "b", "waits")}


def test_equal_names_in_two_clusters_are_two_workloads() -> None:
    said = promise("service_class", "offline", workload="t/w")
    elsewhere = replace(said, subject=replace(said.subject, cluster="d"), value="online")
    store = FrameStore.of_batches([Batch(facts=[said, elsewhere])])
    found = promises_of(store.facts(), [("c", "t", "w"), ("d", "t", "w"), ("e", "t", "w")], ())
    classes = {owner[0]: (known.declared, known.declaration.service_class) for owner, known in found.items()}
    assert classes == {"c": (True, "offline"), "d": (True, "online"), "e": (False, "online")}


def test_protected_is_what_nobody_knows_nobody_declared_or_somebody_protects() -> None:
    promises = promises_of(
        NO_FACTS,
        [("c", "t", "free"), ("c", "t", "kept"), ("c", "t", "silent")],
        [
            WorkloadDeclaration(match="free", service_class="offline"),
            WorkloadDeclaration(match="kept", service_class="offline", protected=True),
        ],
    )
    assert not is_protected(promises, ("c", "t", "free"))
    assert is_protected(promises, ("c", "t", "kept"))
    assert is_protected(promises, ("c", "t", "silent"))
    assert is_protected(promises, ("c", "t", "never seen"))
    assert is_protected(promises, ("d", "t", "free"))  # another cluster's
