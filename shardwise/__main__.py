"""The entry point of `shardwise` and `python -m shardwise`; handles Ctrl-C before any import."""

import os
import signal
from typing import Any, NoReturn


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from ._cli import main as run

    run(_end)


def _end(signum: int, frame: Any) -> NoReturn:
    """Exit at once: a `KeyboardInterrupt` during an import might be turned into another error."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
