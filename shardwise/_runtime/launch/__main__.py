"""A process of the launcher's: `python -m shardwise._runtime.launch [-m] SCRIPT ARGS...`."""

import sys

from .child import main

main(sys.argv[1:])
