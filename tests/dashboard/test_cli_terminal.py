"""Tables in a terminal: never wider than it, no heading broken, nothing lost; in a pipe whole, however wide."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest

from dashboard.cli.output import print_table

COLUMNS = ["code", "id", "verdict", "subject", "claim", ">effect", ">sure", ">coverage"]
CLAIM = "the claim is rather long, and goes on and on, so that it cannot stand in one line of any terminal"
ID = "0123456789abcdef"
ROW = ["TT101", ID, "holds", "team/workload-with-a-long-name on node-a.example.com", CLAIM, "12.5 %", "95 %", "100 %"]
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A stream that says to be a terminal."""

    def isatty(self) -> bool:
        return True


def shown(
    monkeypatch: pytest.MonkeyPatch, width: int, columns: list[str], *rows: list[str], term: str = "xterm"
) -> str:
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdout", stream)
    print_table(columns, rows, title="a title that is longer than narrow terminals are")
    return _STYLE.sub("", stream.getvalue())


@pytest.mark.parametrize("term", ["xterm", "dumb"])
@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_it_fits_and_says_everything(monkeypatch: pytest.MonkeyPatch, width: int, term: str) -> None:
    text = shown(monkeypatch, width, COLUMNS, ROW, ROW, term=term)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for heading in COLUMNS:
        assert heading.removeprefix(">") in text
    letters = re.sub(r"[\s─]", "", text)
    if width < 100:  # as blocks the words of a cell follow each other
        assert letters.count(re.sub(r"\s", "", CLAIM)) == 2
        assert letters.count(re.sub(r"\s", "", ROW[3])) == 2
    for word in ("TT101", "12.5 %", "95 %"):
        assert text.count(word) == 2


def test_a_table_that_has_room_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, 80, ["name", ">rows"], ["gpu", "12"], ["slice", "3"]).splitlines()
    assert [line.split() for line in lines if re.search(r"\d", line)] == [["gpu", "12"], ["slice", "3"]]


def test_in_a_pipe_it_is_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(COLUMNS, [ROW])
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == [name.removeprefix(">") for name in COLUMNS]
    assert all(cell in line for cell in ROW)
    assert os.environ["COLUMNS"] == "40"
