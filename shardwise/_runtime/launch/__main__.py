"""A process that the launcher starts: `python -m shardwise._runtime.launch [-m] SCRIPT ARGS...`."""

import sys

from .child import main

main(sys.argv[1:])
