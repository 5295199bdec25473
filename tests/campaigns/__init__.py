"""Campaigns against what is kept on disk: damage, kills and signals.

`python -m tests.campaigns --help` says how they are run.
"""
