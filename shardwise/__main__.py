"""`python -m shardwise` is `shardwise`."""

from ._cli import main

if __name__ == "__main__":
    main()
