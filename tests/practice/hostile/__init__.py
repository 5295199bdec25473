"""Hostile solutions: what each tries, and a command that judges them all as a class.

python -m tests.practice.hostile            behind every wall there is
python -m tests.practice.hostile --without unshare               bubblewrap in its place
python -m tests.practice.hostile --without unshare,bubblewrap    Landlock and seccomp alone
"""
