"""Entry point: whatever happens, one line says so and the exit code is one of the documented ones."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from harness.errors import ExitCode, one_line
from harness.streams import mend_streams, silence


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m harness` and of the console script. Returns the exit code."""
    mend_streams()
    try:
        # imported here, so that an interruption or a fault while importing ends like any other
        from harness.command_line import run_command

        code = run_command(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say("interrupted")
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:  # whoever read the output has read enough
        silence(sys.stdout)
        code = ExitCode.OK
    except Exception as error:  # noqa: BLE001 - the last boundary: 1, Python's own code, means a regression
        _say(f"fault in the harness: {type(error).__name__}: {one_line(error)}; {_keep_traceback(error)}")
        silence(sys.stdout)
        code = ExitCode.INFRASTRUCTURE
    return int(code)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it; the exit code says the same
        print(f"harness: {text}", file=sys.stderr, flush=True)


def _keep_traceback(error: Exception) -> str:
    """Write the traceback beside the temporary files; says where it is."""
    text = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="harness-fault-", suffix=".log")
        os.close(handle)
        Path(name).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as failure:
        return f"its traceback cannot be kept ({failure.strerror})"
    return f"traceback in {name}"


if __name__ == "__main__":
    sys.exit(main())
