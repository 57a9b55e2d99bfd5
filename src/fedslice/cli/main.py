"""The command line ``fedslice``: a thin layer over the library.

Exit codes: 0 done, 2 wrong usage or input, 3 diverged; 128 and the signal's number when one ends
it."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from fedslice.cli.parser import parser
from fedslice.cli.printing import say
from fedslice.cli.programs import keep_compiled
from fedslice.cli.stopping import Stopped, Stopping
from fedslice.errors import FedsliceError, InputError

INTERRUPTED, BROKEN_PIPE = 130, 141  # as a shell reports SIGINT and SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    >>> main(["algorithms"])  # doctest: +ELLIPSIS
    fedavg ...
    """
    options = argparse.Namespace()
    keep_compiled()
    try:
        with Stopping() as options.stop:
            try:
                code: int | None = parser().parse_args(arguments, options).act(options)
            finally:
                sys.stdout.flush()  # here, where a reader that has left can be dealt with
            return code or 0
    except Stopped as stopped:
        _leave(f"stopped{_saved(stopped, options)}")
        return stopped.exit_code
    except KeyboardInterrupt:
        _leave(
            "stopped at once; the same command with the same --out goes on from the last"
            " checkpoint, if there is any"
        )
        return INTERRUPTED
    except BrokenPipeError:
        _leave("")
        return BROKEN_PIPE
    except FedsliceError as error:
        _leave(str(error))
        return error.exit_code
    except OSError as error:
        _leave(f"{error.filename or 'standard output or a file'}: {error.strerror or error}")
        return InputError.exit_code


def command() -> int:
    """The same as a process of its own.  What was imported stays, and tracing makes much and little
    garbage, so it is looked for rarely; at the end, when all goes anyway, not at all."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    code = main()
    gc.freeze()
    return code


def _saved(stopped: Stopped, options: argparse.Namespace) -> str:
    """What is left of the rounds that were under way."""
    if stopped.round is None:
        return "; no round was under way"
    if stopped.folder is None:
        return f" after round {stopped.round}; a demo keeps no rounds"
    several = "algorithms" in options
    out = options.out or (stopped.folder.parent if several else stopped.folder)
    return f" after round {stopped.round}; the same command with --out {out} goes on from there"


def _leave(text: str) -> None:
    """Say a last word, if anybody is there to read it; the rest of what nobody reads is dropped."""
    if text:
        with suppress(OSError):
            say(f"fedslice: {text}")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


if __name__ == "__main__":
    sys.exit(command())
