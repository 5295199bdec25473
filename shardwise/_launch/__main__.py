"""A process of the launcher's: `python -m shardwise._launch [-m] SCRIPT ARGS...`."""

import sys

from .child import main

main(sys.argv[1:])
