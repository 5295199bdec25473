"""The base class of faults: what can be wrong with a program.

Nothing here imports JAX: `shardwise rule` and the project settings use these classes too.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from .finding import MEANING, NUMBERS, OPERATIONS, Finding, nowhere

if TYPE_CHECKING:
    from ..._program import Where

FAULTS: dict[str, type[Fault]] = {}
"""All faults by their codes, in order."""

OLD: dict[str, str] = {}
"""Codes of earlier versions, each with its current code."""


class Fault:
    """One kind of mistake: its documentation, and how evidence of it becomes a finding.

    A class has `from_meaning`, `from_numbers` or `from_operations` for each kind of evidence; each
    returns a `Finding`, or None if the evidence does not show this fault.
    """

    code: ClassVar[str]
    title: ClassVar[str]
    old: ClassVar[tuple[str, ...]] = ()
    """Codes that the fault had in earlier versions; they still work in comments and settings."""
    evidence: ClassVar[tuple[str, ...]] = ()
    """What it is derived from: by default, the kinds for which the class has a method."""
    certain: ClassVar[bool] = True
    """Whether its findings fail a verdict, unless they say otherwise; suspicions do not."""
    shown_by: ClassVar[tuple[str, ...]] = ()
    """Codes of faults that confirm this suspicion in a run; the suspicion is then not repeated."""
    page: ClassVar[str]
    """The page of the documentation that describes it: `prove` if meaning shows it, or `check`."""
    explanation: ClassVar[str]
    wrong: ClassVar[str] = ""
    """An example program with the fault."""
    remedy: ClassVar[str] = ""
    right: ClassVar[str] = ""
    """The same program without the fault."""
    more: ClassVar[str] = ""
    see: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Related pages of the documentation: titles and paths."""

    def __init_subclass__(cls) -> None:
        if not cls.code:
            return  # a shared base class
        for code in (cls.code, *cls.old):
            if code in FAULTS:
                raise ValueError(f"{code} is the code of {FAULTS[code].__name__}")
            if code in OLD:
                raise ValueError(f"{code} is a former code of {FAULTS[OLD[code]].__name__}")
        for name in ("explanation", "wrong", "remedy", "right", "more"):
            setattr(cls, name, inspect.cleandoc(getattr(cls, name)))
        kinds = [kind for kind in (MEANING, NUMBERS, OPERATIONS) if hasattr(cls, f"from_{kind}")]
        cls.evidence = cls.evidence or tuple(kinds)
        cls.page = "prove" if MEANING in kinds else "check"
        FAULTS[cls.code] = cls
        ordered = sorted(FAULTS.items())
        FAULTS.clear()
        FAULTS.update(ordered)
        OLD.update(dict.fromkeys(cls.old, cls.code))

    @classmethod
    def finding(
        cls, message: str, where: Where | None = None, remedy: str = "", **fields: Any
    ) -> Finding:
        """Return a finding of this fault; without `where` it has no line."""
        fields = {"certain": cls.certain, **fields}
        return Finding(cls.code, message, where or nowhere(), remedy=remedy, **fields)

    @classmethod
    def summary(cls) -> str:
        """Return the first paragraph of the explanation as plain text."""
        first = cls.explanation.split("\n\n")[0]
        return first.replace("*", "").replace("`", "").replace("\n", " ")

    @classmethod
    def markdown(cls, folder: str | None = None) -> str:
        """Return the section of this fault, without its heading.

        Links are relative to a `folder` of the documentation; without one, pages are only named.
        """
        former = f"Formerly {' and '.join(cls.old)}." if cls.old else ""
        pages = [
            f"{title} (in the documentation: {page})"
            if folder is None
            else f"[{title}]({'../' * (folder != '')}{page}.md)"
            for title, page in cls.see
        ]
        see = f"See {' and '.join(pages)}." if pages else ""
        about = " ".join(filter(None, (cls.explanation, see, former)))
        remedy = f"**The remedy.** {cls.remedy}" if cls.remedy else ""
        parts = (about, _fenced(cls.wrong), remedy, _fenced(cls.right), cls.more)
        return "\n\n".join(filter(None, parts))


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```" if code else ""


def canonical(code: str) -> str:
    """Return the current code for a code of any version."""
    return OLD.get(code, code)


def fault_of(code: str) -> type[Fault] | None:
    """Return the fault with a code, including codes of earlier versions."""
    return FAULTS.get(canonical(code))


def nearest(code: str) -> str:
    """Return the existing code that an unknown one probably means; empty if unclear."""
    normalized = code.strip().upper().translate(str.maketrans("OIL", "011"))
    matches = difflib.get_close_matches(normalized, [*FAULTS, *OLD], n=1, cutoff=0.75)
    return matches[0] if matches else ""
