"""The census adds up; the catalogue is whole and its pages are in step; needs are fields of the schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.allocator_detector import AllocatorDetector
from analyzer.bottleneck import BottleneckDetector
from analyzer.census import SUBJECT_COLUMNS, measure_subjects, take_census
from analyzer.codes import NOT_THERE_YET, Scope, codes, explain, page, pages, write_pages
from analyzer.exhaustion import ExhaustionDetector
from analyzer.fragmentation import FragmentationDetector
from analyzer.health import HealthDetector
from analyzer.idle import IdleDetector
from analyzer.protocols import Detector, Withheld
from analyzer.settings import AnalyzeSettings
from analyzer.sharing_memory import SharingMemoryDetector
from collector.schema import MEASUREMENTS
from tests.analyzer.conftest import MakeNode

ROOT = Path(__file__).resolve().parents[2]
DETECTORS: tuple[Detector, ...] = (
    FragmentationDetector(),
    ExhaustionDetector(),
    IdleDetector(),
    BottleneckDetector(),
    HealthDetector(),
    AllocatorDetector(),
    SharingMemoryDetector(),
)
PRESENT = {
    "TT101",
    "TT102",
    "TT111",
    "TT112",
    *(f"TT{n}" for n in (211, 212, 213, 214, 221, 222, 223)),
    *(f"TT2{n}" for n in (31, 32, 33, 41, 42, 43)),
    *(f"TT3{n:02d}" for n in (1, 2, 11, 12, 13, 14)),
    "TT321",
    *(f"TT{n}" for n in range(401, 411)),
    "TT502",
    "TT504",
    *(f"TT{n}" for n in range(601, 609)),
}


def test_every_code_of_the_contract_is_there() -> None:
    wanted = [
        *(f"TT{n}" for n in (101, 102, 111, 112)),
        *(f"TT{n}" for n in (211, 212, 213, 214, 221, 222, 223, 231, 232, 233, 241, 242, 243)),
        *(f"TT{n}" for n in (301, 302, 311, 312, 313, 314, 321)),
        *(f"TT{n}" for n in (401, 402, 403, 404, 405, 406, 407, 408, 409, 410)),
        *(f"TT{n}" for n in (501, 502, 503, 504, 511)),
        *(f"TT{n}" for n in (601, 602, 603, 604, 605, 606, 607, 608)),
    ]
    assert list(codes()) == wanted
    assert {name for name, code in codes().items() if code.implemented} == PRESENT


def test_implemented_codes_are_fully_described() -> None:
    for name in PRESENT:
        code = codes()[name]
        assert all((code.claim, code.computed, code.risk, code.action)), name
        assert set(code.settings) <= AnalyzeSettings.model_fields.keys(), name


def test_explain() -> None:
    text = explain(" tt301 ")
    assert text.startswith("# TT301: Idle and held")
    for heading in ("What it claims", "How it is computed", "Thresholds", "How it can be wrong", "What to do"):
        assert f"## {heading}" in text
    assert "`[analyze] idle_minutes` = 60.0" in text
    assert NOT_THERE_YET in page(replace(codes()["TT301"], computed=""))
    with pytest.raises(KeyError, match="expected a finding code such as TT101, got 'TT999'"):
        explain("TT999")


def test_pages_are_in_step() -> None:
    folder = ROOT / "docs" / "codes"
    assert {path.name for path in folder.glob("*.md")} == set(pages())
    for name, text in pages().items():
        assert (folder / name).read_text(encoding="utf-8") == text, f"run: python -m analyzer.codes (differs: {name})"


def test_pages_are_written(tmp_path: Path) -> None:
    write_pages(tmp_path / "codes")
    assert (tmp_path / "codes" / "TT101.md").read_text(encoding="utf-8") == explain("TT101")


def test_needs_are_fields_of_the_schema_and_codes_of_the_catalogue() -> None:
    for detector in DETECTORS:
        assert set(detector.needs) == set(detector.codes) <= codes().keys()
        for needs in detector.needs.values():
            for measurement, fields in needs.items():
                for field in fields:
                    assert set(field.split("|")) <= set(MEASUREMENTS[measurement].field_names)


def test_detectors_take_an_empty_node(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    for detector in DETECTORS:
        got = detector.conclude(detector.measure(node.partition()), node.context())
        assert (got.findings, got.withheld) == ([], [])
        assert detector.conclude(pd.DataFrame(), node.context()) == got


def test_subjects_are_counted_once(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card("GPU-1", sm_active_ratio=0.1)
    node.slice("gi1", kind="mig", tenant="a", sm_active_ratio=0.1)
    node.slice("gi1", kind="mig", tenant="b", sm_active_ratio=0.1)
    node.fact("gpu", "model", "NVIDIA A30", gpu="GPU-2")
    rows = measure_subjects(node.partition())
    assert list(rows.itertuples(index=False, name=None)) == [
        ("c", "node-a", "GPU-1", ""),
        ("c", "node-a", "GPU-1", "gi1"),
        ("c", "node-a", "GPU-2", ""),
    ]


def fleet() -> pd.DataFrame:
    rows = [("c", "n", f"g{i}", "") for i in range(2)] + [
        ("c", "n", f"g{i}", f"s{j}") for i in range(2) for j in range(3)
    ]
    return pd.DataFrame(rows, columns=list(SUBJECT_COLUMNS))


def test_the_census_says_why() -> None:
    said = [
        Withheld("TT301", "c", "n", "g0", "s0", "blind"),
        Withheld("TT301", "c", "n", "g0", "s0", "another reason"),
        Withheld("TT301", "c", "n", "g0", "s1", "nobody holds it", applicable=False),
        Withheld("TT301", "c", "n", "gone", "s9", "blind"),
        Withheld("TT604", "c", "n", "g1", "", "alone"),
        Withheld("TT211", "c", "", "", "", "no requests"),
        Withheld("TT999", "c", "n", "g0", "s0", "not asked for"),
    ]
    census = take_census(fleet(), ["TT301", "TT604", "TT211"], said)
    assert (census.nodes, census.cards, census.slices) == (1, 2, 6)
    document = json.loads(json.dumps(census.to_json()))["codes"]
    assert document["TT301"] == {
        "scope": "slice",
        "subjects": 6,
        "analysed": 4,
        "withheld": 1,
        "not_applicable": 1,
        "reasons": {"another reason": 1, "nobody holds it": 1},
    }
    assert (document["TT604"]["subjects"], document["TT604"]["withheld"]) == (2, 1)
    assert (document["TT211"]["subjects"], document["TT211"]["analysed"]) == (1, 0)


withheld = st.builds(
    Withheld,
    st.sampled_from(["TT301", "TT401", "TT601", "TT211"]),
    st.just("c"),
    st.sampled_from(["n", ""]),
    st.sampled_from(["g0", "g1", "g7", ""]),
    st.sampled_from(["s0", "s1", "s2", ""]),
    st.sampled_from(["a", "b"]),
    st.booleans(),
)


@given(st.lists(withheld, max_size=30))
def test_the_census_adds_up_to_the_fleet(said: list[Withheld]) -> None:
    census = take_census(fleet(), ["TT301", "TT401", "TT601", "TT211"], said)
    sizes = {Scope.SLICE.value: 6, Scope.CARD.value: 2, Scope.FLEET.value: 1}
    for code in census.codes:
        assert code.subjects == sizes[code.scope]
        assert code.analysed + code.withheld + code.not_applicable == code.subjects
        assert sum(code.reasons.values()) == code.withheld + code.not_applicable
    assert take_census(fleet()[::-1], ["TT211", "TT601", "TT401", "TT301"], said[::-1]) == census


def test_an_empty_fleet() -> None:
    census = take_census(pd.DataFrame(columns=list(SUBJECT_COLUMNS)), ["TT301"], [])
    assert census.codes[0].subjects == 0


def test_a_plugins_own_code_is_no_error() -> None:
    subjects = pd.DataFrame([("c", "n", "GPU-1", "")], columns=list(SUBJECT_COLUMNS))
    assert take_census(subjects, ["TT6H1"], []).codes == ()
