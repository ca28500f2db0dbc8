"""Targets and cards that come and go, stand still, or are not what their address says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.collector.conftest import Cycles

URL = "http://a:9400/metrics"


def card(uuid: str, power: float = 100.0, energy: float | None = None, host: str = "h1") -> str:
    labels = f'{{gpu="0",UUID="{uuid}",Hostname="{host}"}}'
    text = f"DCGM_FI_DEV_POWER_USAGE{labels} {power}\nDCGM_FI_DEV_SM_CLOCK{labels} 1000\n"
    text += f"DCGM_FI_DEV_GPU_TEMP{labels} 40\nDCGM_FI_DEV_GPU_UTIL{labels} 90\n"
    return text if energy is None else text + f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{labels} {energy}\n"


def test_a_target_that_stops_and_answers_again_is_two_events(cycles: Cycles) -> None:
    cycles.poll({URL: card("GPU-0")})
    seen = []
    for text in (None, None, card("GPU-0")):
        cycles.poll({URL: text})
        seen.append(cycles.events())
    assert seen == [["target_down"], [], ["target_up"]]
    assert len(cycles.frame("gpu")) == 1


def test_one_target_that_is_down_does_not_hold_up_the_others(cycles: Cycles) -> None:
    cycles.poll({"http://b/m": None, URL: card("GPU-0")})
    assert list(cycles.frame("gpu").index) == ["GPU-0"]
    assert cycles.events() == ["target_down"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [("", "empty body"), ('{"status":"error"}', "body is JSON, not an exposition")],
)
def test_an_answer_without_an_exposition_is_down_and_no_card_is_lost(cycles: Cycles, body: str, reason: str) -> None:
    cycles.poll(card("GPU-0"))
    for _ in range(3):
        cycles.poll(body)
        assert cycles.rejects() == {("", reason): 1}
        assert "card_lost" not in cycles.events()
    assert cycles.batch.row_count == 0


def test_cards_without_samples_while_the_target_answers_are_lost_and_may_return(cycles: Cycles) -> None:
    cycles.poll(card("GPU-0") + card("GPU-1"))
    seen = []
    for text in (card("GPU-0"), card("GPU-0"), card("GPU-0"), card("GPU-0") + card("GPU-1")):
        cycles.poll(text)
        seen.append([(event.code, event.subject.gpu) for event in cycles.batch.events])
    assert seen == [[], [("card_lost", "GPU-1")], [], [("card_returned", "GPU-1")]]


def test_headers_without_samples_mean_that_all_cards_are_gone(cycles: Cycles) -> None:
    cycles.poll(card("GPU-0"))
    for _ in range(2):
        cycles.poll("# HELP DCGM_FI_DEV_GPU_UTIL x\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n")
    assert cycles.events() == ["card_lost"]


def test_a_card_that_is_known_from_before_a_restart_is_missed(cycles: Cycles) -> None:
    cycles.poll(card("GPU-0") + card("GPU-1"))
    later = type(cycles)(cycles.context)
    later.assembler.import_state(cycles.assembler.export_state())
    later.now = cycles.now
    later.poll(card("GPU-0"))
    later.poll(card("GPU-0"))
    assert later.events() == ["card_lost"]


def test_a_busy_card_whose_values_stand_still_is_stale(cycles: Cycles) -> None:
    for _ in range(10):
        cycles.poll(card("GPU-0"))
    assert cycles.frame("gpu").loc["GPU-0", "power_watts"] == 100.0
    cycles.poll(card("GPU-0"))
    # The card is there, all that is told of it is how old its values are.
    row = cycles.frame("gpu").loc["GPU-0"]
    assert row.dropna().index.tolist() == ["time", "cluster", "node", "source_age_seconds"]
    assert row["source_age_seconds"] == 600
    assert cycles.frame("slice").empty
    assert cycles.rejects() == {("", "stale"): 4}
    assert [(e.code, e.subject.gpu) for e in cycles.batch.events] == [("source_frozen", "GPU-0")]
    cycles.poll(card("GPU-0"))
    assert cycles.events() == []  # said once
    assert cycles.frame("gpu").loc["GPU-0", "source_age_seconds"] == 660
    cycles.poll(card("GPU-0", power=101.0))
    assert cycles.frame("gpu").loc["GPU-0", "power_watts"] == 101.0
    assert cycles.frame("gpu").loc["GPU-0", "source_age_seconds"] == 0
    assert cycles.events() == ["source_moves"]


def test_a_short_interval_does_not_make_an_exporters_own_pace_a_fault(cycles_with: Callable[..., Cycles]) -> None:
    cycles = cycles_with(interval_seconds=5.0)
    for _ in range(24):
        cycles.poll(card("GPU-0"))
        assert cycles.events() == []
    cycles.poll(card("GPU-0"))
    assert cycles.events() == ["source_frozen"]


def test_a_file_that_is_never_written_again_is_one_event_for_all_its_cards(cycles: Cycles) -> None:
    text = card("GPU-0", energy=5e6) + card("GPU-1", energy=7e6).replace('gpu="0"', 'gpu="1"')
    told = []
    for _ in range(12):
        cycles.poll(text)
        told += [(e.subject.object, e.message) for e in cycles.batch.events if e.code == "source_frozen"]
    assert len(told) == 1
    assert told[0][0] == URL
    assert "none of its 2 cards moves" in told[0][1]


def test_a_text_that_must_change_and_does_not_is_frozen(cycles: Cycles) -> None:
    other = 'nv_inference_count{model="m",version="1"} 5\n'
    seen = []
    for minute in range(14):
        own = 0.5 if minute < 12 else 0.51
        cycles.poll({URL: card("GPU-0", power=100 + minute), "http://s/m": f"{other}process_cpu_seconds_total {own}\n"})
        seen += [(minute, event.code) for event in cycles.batch.events if event.subject.object == "http://s/m"]
    # Ten answers after the first one were the same; then it moves again.
    assert [one for one in seen if one[1].startswith("source")] == [(10, "source_frozen"), (12, "source_moves")]


def test_energy_that_does_not_grow_shows_a_frozen_file_and_one_that_grows_a_steady_card(cycles: Cycles) -> None:
    frozen, steady = "http://b/m", "http://c/m"
    for minute in range(14):
        cycles.poll({frozen: card("GPU-0", energy=5e6), steady: card("GPU-1", energy=5e6 + minute * 6e6)})
    assert list(cycles.frame("gpu")["power_watts"].dropna().index) == ["GPU-1"]


def test_an_address_that_leads_to_a_random_machine_is_refused(cycles: Cycles) -> None:
    texts = [card("GPU-0", host="h1"), card("GPU-1", host="h2"), card("GPU-0", host="h1")]
    for text in texts:
        cycles.poll({URL: text}, node="")
    assert cycles.batch.row_count == 0
    assert cycles.rejects() == {("", "several machines behind one address"): 4}


def test_a_replaced_card_is_a_new_one(cycles: Cycles) -> None:
    cycles.poll({URL: card("GPU-0")}, node="")
    cycles.poll({URL: card("GPU-1")}, node="")
    assert list(cycles.frame("gpu").index) == ["GPU-1"]
    (event,) = cycles.batch.events
    assert (event.code, event.subject.gpu) == ("card_replaced", "GPU-0")
    assert event.message == "GPU-0 was replaced: GPU-1 is in its place (number 0)"
    # What was told of the old one ends: capacity holds one card, as before.
    assert {f.name for f in cycles.batch.facts if f.subject.gpu == "GPU-0" and f.value is None} >= {"ordinal", "mig"}
    for _ in range(3):
        cycles.poll({URL: card("GPU-1")}, node="")
        assert cycles.events() == []


def test_timestamps_that_are_off_are_told_once(cycles: Cycles) -> None:
    seen = []
    for minute in range(4):
        stamp = int((cycles.start.timestamp() + 60 * minute + (600 if minute in (1, 2) else 0)) * 1000)
        text = "".join(f"{line} {stamp}\n" for line in card("GPU-0", power=100 + minute).splitlines())
        cycles.poll(text)
        seen.append(cycles.events())
    assert seen == [[], ["clock_skew"], [], []]
    assert len(cycles.frame("gpu")) == 1


@pytest.mark.parametrize(
    ("hostname", "node"),
    [("gpu-node-7", "gpu-node-7"), ("localhost", "a"), ("nvidia-dcgm-exporter-tl46n", "a")],
)
def test_the_node_is_no_pods_name_and_not_localhost(cycles: Cycles, hostname: str, node: str) -> None:
    cycles.poll({URL: card("GPU-0", host=hostname)}, node="")
    assert cycles.frame("gpu").loc["GPU-0", "node"] == node
    cycles.poll({"http://b/m": card("GPU-5", host=hostname)}, node="", labels={"http://b/m": {"node": "said"}})
    assert cycles.frame("gpu").loc["GPU-5", "node"] == "said"
