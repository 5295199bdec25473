"""The exceptions, and the one helper that words them.

Every message of shardwise says where it happened, what was found, which rule that breaks and what
to do about it, in that order. `explain_error` puts the four together, so that messages look alike.
"""

from __future__ import annotations


class ShardwiseError(Exception):
    """Everything that shardwise raises on purpose derives from this."""


class DeadlockError(ShardwiseError, RuntimeError):
    """Some devices wait in a collective that others never reach.

    On a real mesh such a program hangs, or is aborted without a word about the cause.
    """


class ShardingError(ShardwiseError, ValueError):
    """A mesh, a spec or an array does not fit the others."""


class ArgumentError(ShardwiseError, TypeError):
    """An argument is of a kind that is not taken."""


class UnsupportedError(ShardwiseError, NotImplementedError):
    """The program uses something the simulator does not know. It never guesses."""


class PeerError(ShardwiseError, RuntimeError):
    """Another process of the same job has failed or gone; its words are in the message."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after what was kept has been said: nobody needs to say it again."""


def a_type(value: object) -> str:
    """The type of a value with its article: `an int`, `a str`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def explain_error(what: str, *, where: str = "", rule: str = "", remedy: str = "") -> str:
    """Word a message: where, what was found, the rule, the remedy; parts left out are left out.

    Args:
        what: What was found, as a sentence.
        where: The place, such as `train.py:31` or `argument 'x'`.
        rule: The rule that was broken, as a sentence.
        remedy: What to do, as a sentence or as code.
    """
    head = f"{where}: {what}" if where else what
    parts = [head, rule, f"Remedy: {remedy}" if remedy else ""]
    return "\n  ".join(part for part in parts if part)
