"""Hostile solutions: what each tries, and a command that judges them all as a class.

python -m tests.practice.hostile                        every class, user and set of walls; a table
python -m tests.practice.hostile files --users root     one class, as root
python -m tests.practice.hostile --walls bubblewrap     one set of walls
python -m tests.practice.hostile --jobs 6               on a machine with many processors
"""
