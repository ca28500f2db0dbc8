"""A file is the new one as a whole or the old one as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from collector.atomic import replacing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_takes_the_place_and_keeps_the_rights(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with replacing(path) as beside:
        beside.write_text("one")
        assert beside.parent == tmp_path
        assert not path.exists()
    assert path.read_text() == "one"
    assert path.stat().st_mode & 0o600 == 0o600
    path.chmod(0o640)
    with replacing(path) as beside:
        beside.write_text("two")
        assert path.read_text() == "one"
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("two", 0o640)
    assert names(tmp_path) == ["out.csv"]


def test_a_secret_is_its_owners_from_the_first_byte_on(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    with replacing(path, mode=0o600) as beside:
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600
        beside.write_text("new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as beside:
            beside.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert (path.read_text(), names(tmp_path)) == ("old", ["out"])


def test_a_process_that_dies_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    child = os.fork()
    if not child:
        with replacing(path) as beside:
            beside.write_text("half")
            os._exit(9)
    os.waitpid(child, 0)
    assert path.read_text() == "old"
    with replacing(path) as beside:  # what the dead one left is in nobody's way
        beside.write_text("new")
    assert path.read_text() == "new"


def test_a_link_is_followed_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    with replacing(link) as beside:
        beside.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with replacing(pipe) as beside:
        assert beside == pipe
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "nowhere" / "out"):
        pass
