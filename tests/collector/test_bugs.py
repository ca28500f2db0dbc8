"""The table of known faults of exporters and of tools that read them: each has its test, or a line why not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

# Number -> what is wrong out there. The tests are `test_row_NN_...` in the modules beside this one.
ROWS: dict[int, str] = {
    1: "busy time of MIG instances is missing or 0",
    2: "blanks of 64-bit integers shown as values",
    3: "no memory figures for instances",
    4: "profiling for some instances only",
    5: "power and energy repeated on every instance",
    6: "everything reads 0 after the card was cut anew",
    7: "new instances are not seen until a restart",
    8: "the label names another profile than the instance has",
    9: "engine activity of a cut card",
    10: "SM activity above 1",
    11: "transfers of instances are blank, and blanks are huge",
    12: "profiling of an instance drifts for hours after its start",
    13: "no use of processes on MIG",
    14: "a server without GPU metrics on MIG",
    15: "0 for processes on MIG where the device is of unknown use",
    16: "one of several sharing pods is named",
    17: "the named pod changes with each scrape",
    18: "the card's value copied to every pod",
    19: "values of processes beside the device's own series",
    20: "pods under MPS without a name, or with a wrong card",
    21: "no pod names where a vGPU layer is the device plugin",
    22: "a container's use above 100 or stuck",
    23: "a container's use at 0 on a busy card",
    24: "no metric until the container touches the card",
    25: "a monitor answers empty",
    26: "metrics of pods that ended; containers counted with the init ones",
    27: "use of processes in the thousands, or of dead ones",
    28: "use of a card in the billions, once in a million samples",
    29: "blanks of profiling, times 100 too",
    30: "profiling silently 0 for weeks",
    31: "a ratio that is documented as percent",
    32: "nanoseconds that are documented as microseconds",
    33: "rates that are declared counters",
    34: "throughput that is never told",
    35: "used and free memory are not the whole",
    36: "memory bandwidth taken for memory fill",
    37: "payload or raw bytes of NVLink",
    38: "unified memory has no figures",
    39: "a new exporter's version doubles idle power",
    40: "empty and overflowing cells",
    41: "a value that is an error text",
    42: "texts in cells, and cards that answer with errors",
    43: "a server shows the whole device's memory",
    44: "AMD cards without UUID, model or serial number",
    45: "the last XID stays, its repeats are invisible",
    46: "an XID overwritten by another",
    47: "no series of XIDs before the first one",
    48: "a count in a window under two names",
    49: "the exporter's own pod in the labels",
    50: "instances without pod labels",
    51: "labels of pods that ended",
    52: "cards without a pod vanish",
    53: "every job gets every instance's series",
    54: "a duplicate makes the whole target answer 500",
    55: "two exporters on a node",
    56: "a host name that is a pod's, or localhost",
    57: "values that stand still after a restart of the engine",
    58: "a card that fell off the bus",
    59: "energy that falls at a reset",
    60: "duplicate stamps, and clocks that differ",
    61: "a metric that was renamed",
    62: "energy of processes on shared cards",
    63: "memory of processes that is not told",
    64: "a parser that changes names",
    65: "instances told apart by the card's number only",
    66: "no figure of use, shown as idle and healthy",
    67: "answers that are no scrape",
    68: "all cards gone from an exporter that answers",
    69: "another card in the same place",
    70: "one UUID for several cards",
    71: "a file served for ever",
    72: "a metric whose unit nobody agrees on",
    73: "a link error taken for an XID",
    74: "zeros left out of means",
    75: "a service address that leads to a random machine",
    76: "energy as the highest less the lowest",
    77: "a stall filled as if power had held",
}

# Number -> why there is no test of it here.
WITHOUT: dict[int, str] = {
    12: "each single value is right in form; that it drifts shows only beside power over hours, in the analyzer",
}
MOST_WITHOUT = 10

_NAME = re.compile(r"^test_row_(\d\d)_")


@cache
def rows_with_tests() -> frozenset[int]:
    numbers = set()
    for path in Path(__file__).parent.glob("test_bugs_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match = _NAME.match(node.name) if isinstance(node, ast.FunctionDef) else None
            if match:
                numbers.add(int(match.group(1)))
    return frozenset(numbers)


@pytest.mark.parametrize("number", ROWS)
def test_a_row_has_its_test_or_its_reason(number: int) -> None:
    assert (number in rows_with_tests()) is not (number in WITHOUT), ROWS[number]


def test_the_table_is_whole() -> None:
    assert list(ROWS) == list(range(1, 78))
    assert rows_with_tests() <= ROWS.keys()
    assert len(WITHOUT) <= MOST_WITHOUT
