"""`python -m shardwise` is `shardwise`: Ctrl-C has its words before anything is imported."""

import os
import signal
from typing import Any, NoReturn


def main() -> None:
    """Run the command line: the entry point of `shardwise`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from ._cli import main as run

    run(_end)


def _end(signum: int, frame: Any) -> NoReturn:
    """What only begins has nothing to put in order; an import might make another error of it."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
