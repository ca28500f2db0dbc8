from __future__ import annotations

from pathlib import Path

import pytest

from collector.errors import RefusedError, UnreachableError
from tests.tuner.fakes import START
from tuner import killswitch
from tuner.model import Freeze


@pytest.mark.parametrize("level", [Freeze.NEW, Freeze.ALL])
def test_pause_says_who_why_and_since_when(tmp_path: Path, level: Freeze) -> None:
    path = tmp_path / "var" / "PAUSED"
    assert killswitch.read(path).level is Freeze.NONE
    said = killswitch.pause(path, level, who="ann", why="two\nlines: odd", at=START)
    assert killswitch.read(path) == said
    assert str(said) == f"paused ({level.value}) by ann since 2026-03-02T00:00:00Z: two lines: odd"
    assert said.allows_new is False
    assert said.allows_rollback is (level is Freeze.NEW)
    assert [p.name for p in path.parent.iterdir()] == ["PAUSED"]
    assert killswitch.resume(path) is True
    assert killswitch.read(path).level is Freeze.NONE
    assert str(killswitch.read(path)) == "not paused"
    assert killswitch.resume(path) is False


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "says nothing"),
        (b"freeze", "says 'freeze'"),
        (b"\xff\xfe", "cannot be read"),
        (b"\nwho: ann\n", "says nothing"),
    ],
)
def test_what_is_not_understood_freezes_everything(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "PAUSED"
    path.write_bytes(content)
    pause = killswitch.read(path)
    assert pause.level is Freeze.ALL
    assert words in str(pause)


@pytest.mark.parametrize("part", ["PAUSED", "var"])
def test_a_link_to_nothing_freezes_everything(tmp_path: Path, part: str) -> None:
    (tmp_path / part).symlink_to(tmp_path / "away")
    path = tmp_path / part if part == "PAUSED" else tmp_path / part / "PAUSED"
    pause = killswitch.read(path)
    assert pause.level is Freeze.ALL
    assert f"{tmp_path / part} is a link to nothing" in str(pause)
    (tmp_path / "away").mkdir() if part == "var" else (tmp_path / "away").write_text("freeze_new\n")
    assert killswitch.read(path).level is (Freeze.NONE if part == "var" else Freeze.NEW)


def test_a_hand_made_file_works(tmp_path: Path) -> None:
    path = tmp_path / "PAUSED"
    path.write_text("freeze_new\n")
    assert killswitch.read(path) == killswitch.Pause(Freeze.NEW)
    assert str(killswitch.read(path)) == "paused (freeze_new)"


def test_a_folder_in_its_place_freezes_everything_and_cannot_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "PAUSED"
    path.mkdir()
    assert killswitch.read(path).level is Freeze.ALL
    with pytest.raises(UnreachableError, match="remove it by hand"):
        killswitch.resume(path)
    with pytest.raises(UnreachableError, match="create the file by hand"):
        killswitch.pause(path, Freeze.ALL, who="ann", why="drill", at=START)


@pytest.mark.parametrize(("who", "why"), [("", "drill"), ("ann", "  ")])
def test_a_pause_needs_who_and_why(tmp_path: Path, who: str, why: str) -> None:
    with pytest.raises(RefusedError, match="needs who and why"):
        killswitch.pause(tmp_path / "PAUSED", Freeze.ALL, who=who, why=why, at=START)


def test_pausing_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="resume instead"):
        killswitch.pause(tmp_path / "PAUSED", Freeze.NONE, who="ann", why="drill", at=START)
