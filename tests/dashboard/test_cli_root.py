"""The root: help, errors as one line, exit codes, what names from outside may do to a terminal."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from collector.errors import InputRejectedError, RefusedError, UnreachableError
from dashboard.cli import output, root
from dashboard.cli.root import app, hoist
from dashboard.cli_docs import commands, markdown, parameters
from tests.dashboard.conftest import Ran

ROOT = Path(__file__).resolve().parents[2]
EVERY = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[path for path, _ in EVERY])
def test_every_command_and_option_has_help_and_a_place_in_the_page(path: str, command: object) -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert f"## `{path}`\n" in page
    assert getattr(command, "help", None)
    for parameter in parameters(command):
        assert parameter.help, f"{path} {parameter.name} has no help"
        assert parameter.help.endswith("."), f"{path} {parameter.name}: help is a sentence"


def test_the_page_is_in_step() -> None:
    assert (ROOT / "docs/cli.md").read_text() == markdown(), "renew it: python -m dashboard.cli_docs > docs/cli.md"


def test_help_and_version(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("--help")
    assert ran.code == 0
    assert "Exit codes: 0 done" in " ".join(ran.out.replace("│", " ").split())
    assert trimtab("--version").out.startswith("trimtab ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["config", "shw"], "No such command 'shw'"),
        (["config", "show", "--foo"], "No such option: --foo; see trimtab config show --help"),
        (["--config"], "Option '--config' requires an argument"),
        (["--config", "absent.toml", "config", "show"], "expected a TOML file at absent.toml (--config)"),
        (["config", "show", "--config", "absent.toml"], "expected a TOML file at absent.toml (--config)"),
    ],
)
def test_a_wrong_call_is_one_line_and_code_2(trimtab: Callable[..., Ran], arguments: list[str], expected: str) -> None:
    ran = trimtab(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("trimtab: ")
    assert expected in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (InputRejectedError("no row\nwas good"), 3, "trimtab: no row was good\n"),
        (UnreachableError("down"), 4, "trimtab: down\n"),
        (RefusedError("paused"), 5, "trimtab: paused\n"),
        (KeyboardInterrupt(), 130, "trimtab: interrupted\n"),
        (
            ZeroDivisionError("by 0"),
            1,
            "trimtab: unexpected ZeroDivisionError: by 0; run again with --debug for the traceback\n",
        ),
    ],
)
def test_errors_end_as_one_line_with_their_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, line: str
) -> None:
    fake = typer.Typer(add_completion=False)

    @fake.command()
    def fail() -> None:
        raise raised

    monkeypatch.setattr(root, "app", fake)
    assert root.run([]) == code
    assert capsys.readouterr().err == line


def test_debug_shows_the_traceback_of_what_nobody_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(root, "app", fail)
    with pytest.raises(ZeroDivisionError):
        root.run(["--debug"])


def test_hoist_moves_global_options_only() -> None:
    assert hoist(["a", "--config", "x", "b", "--debug", "--", "--config", "y"]) == [
        "--config", "x", "--debug", "a", "b", "--", "--config", "y",
    ]  # fmt: skip
    assert hoist(["a", "--config=x"]) == ["--config=x", "a"]


def test_a_reader_that_goes_away_is_no_error(elsewhere: Path) -> None:
    shell = f"{sys.executable} -m dashboard.cli config show | head -n 1; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["/bin/bash", "-c", shell], capture_output=True, text=True, check=True, cwd=elsewhere)  # noqa: S603
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[-1] == "0"


HOSTILE = ["[red]x", "[/]", "\x1b[31mred\x1b[0m", "a\rb", "a\nb", "\u202eevil", "\x9b31m", ":smile:", "\ud800"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_outside_are_printed_literally_and_harmlessly(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name", ">n"], [(name, 1)], title=name, empty=name)
    output.say(name)
    output.note(name)
    output.error(name)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert not [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")]
    if name.isprintable():
        assert printed.out.count(name) == 3
    assert printed.err.count("\n") == 2


@given(st.text())
def test_clean_text_never_controls_a_terminal(text: str) -> None:
    cleaned = output.clean(text)
    assert len(cleaned) == len(text)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in cleaned)


def test_a_piped_table_is_plain_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    output.print_table(["name", ">n"], [(long, 7), (Text("b", style="bold"), 123)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name" + " " * 296 + "    n", long + "    7", "b" + " " * 299 + "  123"]


def test_no_rows_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name"], [], empty="no changes yet")
    assert capsys.readouterr().out == "no changes yet\n"


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": float("nan"), "b": [1.5, None]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.5, None]}


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_gets_colour_unless_no_color_says_otherwise(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    output.print_table(["name", "state"], [("[red]evil\x1b[2J", Text("bad", style="red"))], title="[b]t")
    text = screen.getvalue()
    assert ("\x1b[31m" in text) is colour
    assert "[red]evil\N{REPLACEMENT CHARACTER}[2J" in text
    assert "[b]t" in text
    assert "\x1b[2J" not in text


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[path for path, _ in EVERY])
def test_help_prints_the_names_of_tables_with_their_brackets(
    path: str, command: object, trimtab: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    printed = trimtab(*path.split()[1:], "--help").out
    texts = [getattr(command, "help", None) or "", *(parameter.help or "" for parameter in parameters(command))]
    tables = [name for text in texts for name in re.findall(r"\[+[a-z_.]+\]+", text)]
    assert [name for name in tables if name not in printed] == []


def test_some_help_speaks_of_tables(trimtab: Callable[..., Ran]) -> None:
    text = trimtab("tune", "--help").out
    assert "[tuner]" in text
    assert "[[backend]]" in text
