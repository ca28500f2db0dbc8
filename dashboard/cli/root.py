"""The root of the command line: global options, and how errors end."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from dashboard.cli import output
from dashboard.cli.context import Context, flag
from dashboard.cli.index import LazyGroup

USAGE = ConfigurationError.exit_code
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)  # said of a file that is open
INTERRUPTED = 130


class RootGroup(LazyGroup):
    """Takes the global options wherever they stand, so that `trimtab analyze --config x` works as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move global options to the front, then parse as usual."""
        return super().parse_args(ctx, hoist(args))


def hoist(args: Sequence[str]) -> list[str]:
    """Move `--config FILE`, `--config=FILE` and `--debug` to the front; nothing after `--` moves."""
    front: list[str] = []
    rest: list[str] = []
    pending = iter(args)
    for word in pending:
        if word == "--":
            rest += [word, *pending]
        elif word == "--config":
            front += [word, *([following] if (following := next(pending, None)) is not None else [])]
        elif word == "--debug" or word.startswith("--config="):
            front.append(word)
        else:
            rest.append(word)
    return [*front, *rest]


app = typer.Typer(
    cls=RootGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="See what shared GPUs really do, and tune them safely.",
    epilog="Exit codes: 0 done, 1 a problem was found, 2 usage or configuration, 3 input rejected, "
    "4 something is unreachable, 5 refused, 130 interrupted.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        output.say(f"trimtab {version('trimtab')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Configuration; else $TRIMTAB_CONFIG, ./trimtab.toml, /etc/trimtab/trimtab.toml.",
        ),
    ] = None,
    debug: Annotated[bool, flag("--debug", help="Print the traceback of an unexpected error.")] = False,
    show_version: Annotated[  # noqa: ARG001  its callback prints it
        bool,
        typer.Option("--version", metavar="", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """See what shared GPUs really do, and tune them safely."""
    ctx.obj = Context(config=config_file, debug=debug)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code; errors end as one line on stderr."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        code = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`trimtab ... | head`): nothing is wrong. Keep Python's own flush at exit quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code.

    Raises:
        BrokenPipeError: stdout has no reader any more.
    """
    try:
        returned = app(arguments, prog_name="trimtab", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "trimtab"
        output.error(f"{error.format_message().rstrip('.')}; see {path} --help")
        return USAGE
    except TrimtabError as error:
        output.error(str(error))
        return error.exit_code
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        output.error(f"{error.title} {place}: {first['msg']}, got {first['input']!r}")
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        output.error("interrupted")
        return INTERRUPTED
    except SystemExit as leaving:  # typer leaves like this where stdout has no reader
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None
        raise
    except BrokenPipeError:
        raise
    except Exception as error:  # the last line of defence: a user never sees a traceback unasked
        if "--debug" in arguments:
            raise
        return _told_in_one_line(error)
    if returned == INTERRUPTED:
        output.error("interrupted")
    return returned if isinstance(returned, int) else 0


def _told_in_one_line(error: Exception) -> int:
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_THE_DISK):
        place = "a file" if error.filename is None else os.fsdecode(error.filename)
        output.error(f"cannot use {place}: {error.strerror}; check the path, its rights and its disk")
        return UnreachableError.exit_code
    text = str(error) or "no message"
    output.error(f"unexpected {type(error).__name__}: {text}; run again with --debug for the traceback")
    return 1
