"""The command line ``factformer``: thin, every command is one call into the library.

The modules of this folder import nothing heavy at the top, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextvars import copy_context

import typer

INTERRUPTED = 130  # as a shell says it: 128 and the number of the signal
LONGEST_MESSAGE = 500
USERS_FAULT = {
    errno.ENOENT,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}
"""System errors that come from a path somebody named."""


def build_app() -> typer.Typer:
    """All commands, in the order of a project: look, make data, train, evaluate, show."""
    from factformer.cli import analyse, benchmark, data, explore, planning, report, serve, ship, study, train

    app = typer.Typer(
        name="factformer",
        help="Learn fast surrogates of partial differential equations on grids.",
        epilog="Start with `factformer demo`. Add --debug to any command for a traceback.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(explore.version_option)
    app.command("list")(explore.list_contents)
    for command in (
        explore.demo,
        data.generate,
        data.convert,
        planning.plan,
        train.train,
        analyse.evaluate,
        explore.rollout,
        analyse.inspect,
        benchmark.benchmark,
        report.report,
        serve.serve,
        analyse.reproduce,
        ship.export,
        study.study,
    ):
        app.command()(command)
    app.add_typer(ship.zoo, name="zoo")
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 2 wrong use (one line says what), 1 failure, 3 stopped and can be resumed."""
    from factformer._support.freed_memory import keep_freed_memory

    _accept_any_locale()
    keep_freed_memory()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words or bool(os.environ.get("FACTFORMER_DEBUG"))
    words = [word for word in words if word != "--debug"] or ["--help"]
    try:
        # In a context of its own: what --plugin brings is there for this command alone.
        result = copy_context().run(build_app(), words, standalone_mode=False)
    except KeyboardInterrupt:
        _complain("interrupted")
        code = INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        code, message = describe(error)
        _complain(message)
    else:
        code = result if isinstance(result, int) else 0
        if code == INTERRUPTED:  # the parser has caught the interrupt and says nothing itself
            _complain("interrupted")
        _leave_job()
    _flush()
    sys.exit(code)


def describe(error: Exception) -> tuple[int, str]:
    """Exit code and the one line that says what went wrong."""
    from factformer._support.files import FULL, error_number
    from factformer.errors import Diverged, LostProcess, UserError

    if hasattr(error, "format_message"):  # wrong use, found by the command-line parser
        return getattr(error, "exit_code", 2), str(error.format_message())
    if type(error).__name__ == "Abort":
        return INTERRUPTED, "interrupted"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, UserError):
        return 2, " ".join(line.strip() for line in lines)
    if isinstance(error, (Diverged, LostProcess)):
        return 1, lines[0]
    if isinstance(error, OSError) and error.errno in USERS_FAULT:
        return 2, f"{error.filename}: {error.strerror}" if error.filename else lines[0]
    if isinstance(error, OSError) and error_number(error) in FULL:
        where = f" while writing {error.filename}" if error.filename else ""
        return 2, f"the disk is full{where}: free some space, try again"
    return 1, f"{type(error).__name__}: {lines[0]} (run again with --debug for the traceback)"


def _complain(message: str) -> None:
    """Print one line, not a long one, that a terminal shows and does not obey."""
    from factformer._support.text import printable, shortened

    line = shortened(printable(" ".join(message.split())), LONGEST_MESSAGE)
    with contextlib.suppress(BrokenPipeError):
        print(f"factformer: {line}", file=sys.stderr)


def _leave_job() -> None:
    """Part from the other processes of a job: threads that still listen to them may abort this one as it ends."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        gc.collect()  # a trainer that waits to be collected would keep those threads
        distributed.destroy_process_group()


def _accept_any_locale() -> None:
    """Let a character that the terminal cannot show become a question mark, not an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _flush() -> None:
    """Write what is left to the terminal or pipe; a reader that went away, such as ``head``, is no failure."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # what is left goes nowhere, or Python complains when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
