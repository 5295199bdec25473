"""Generate the pages of the documentation that list faults, from their classes."""

from __future__ import annotations

import dataclasses
import inspect

from .fault import FAULTS, Fault


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the documentation, without the sections of its faults."""

    title: str
    introduction: str
    shared: str
    """Code that all examples of the page share."""
    file: str = ""
    """The file name that error messages give for that code."""

    @property
    def code(self) -> str:
        """The shared code as Markdown."""
        head = f'python title="{self.file}"' if self.file else "python"
        return f"```{head}\n{inspect.cleandoc(self.shared)}\n```"


PAGES = {
    "check": Page(
        "Codes",
        """
        Every finding has a code that names the fault, whatever shows it, and does not change. Codes
        of earlier versions still work wherever a code is written: in comments, in settings, after
        `shardwise rule`. What a run or the meaning of the values shows is certain and fails the
        verdict. What only the operations show (`SW2xx`) *may* be wrong: it does not fail the
        verdict by itself, and becomes certain when a run shows that it is wrong. `SW5xx` are about
        the check, not the program: the data or the meshes could not have shown much.

        Without a `reference`, the results on one device define what is right, and the program is
        read on both meshes. Where the meaning of a result departs from its meaning on one device,
        the place is known, and so is the cause. Where meaning explains nothing, numbers decide.
        With a `reference=`, numbers alone decide what is wrong.
        """,
        '''
        import functools

        import jax
        import jax.numpy as jnp
        from jax import P
        from jax.lax import pmean, psum

        import shardwise as sw

        x = jnp.arange(1.0, 17.0)


        def sharded(in_specs=P("data"), out_specs=P(), **options):
            """Decorate the body of a shard_map: the result takes the mesh as a keyword."""
            specs = {"in_specs": in_specs, "out_specs": out_specs, **options}

            def decorate(body):
                def program(*args, mesh):
                    return jax.shard_map(body, mesh=mesh, **specs)(*args)

                program.__name__ = body.__name__
                return program

            return decorate


        def check(program, *args, sizes=(1, 2, 4), reference=None):
            return sw.check(program, *args, mesh={"data": sizes}, reference=reference)
        ''',
        "sharded.py",
    ),
    "prove": Page(
        "Codes of a proof",
        """
        These faults are visible in what each value means. `sw.prove` finds them without running
        anything, and in a verdict of `sw.check` they come first: they name the cause. Where meaning
        explains nothing, `check` finds most of them by numbers too.
        """,
        """
        import jax
        import jax.numpy as jnp
        from jax import P, lax

        import shardwise as sw

        shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(32, 8), (8, 64), (64, 8), (8,)]]


        def prove(body, out_specs=P()):
            ins = (P(), P(None, "model"), P("model"), P())

            def layer(*args, mesh):
                specs = {"in_specs": ins, "out_specs": out_specs}
                return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(*args)

            print(sw.prove(layer, *shapes, mesh=sw.mesh(model=4), run=False))
        """,
    ),
}


def faults_of(page: str) -> list[type[Fault]]:
    """Return the faults described on a page, ordered by code."""
    return [fault for fault in FAULTS.values() if fault.page == page]


def render(name: str) -> str:
    """Return a page of the documentation, without the output of its examples."""
    page, other_page = PAGES[name], {"check": "../prove/codes.md", "prove": ""}[name]
    listed = [*FAULTS] if name == "check" else [fault.code for fault in faults_of(name)]
    rows = ["| code | what is wrong | found by | formerly |", "|---|---|---|---|"]
    for code in listed:
        fault = FAULTS[code]
        link = f"{other_page if fault.page != name else ''}#{code.lower()}"
        evidence = ", ".join(fault.evidence) or "the check"
        rows.append(f"| [{code}]({link}) | {fault.title} | {evidence} | {', '.join(fault.old)} |")
    sections = [f"## {fault.code}\n\n{fault.markdown(name)}" for fault in faults_of(name)]
    shared = "The examples share these lines."
    parts = [f"# {page.title}", inspect.cleandoc(page.introduction), "\n".join(rows)]
    return "\n\n".join([*parts, shared, page.code, *sections]) + "\n"


def printed(fault: type[Fault]) -> str:
    """Return the section of a fault for reading outside the documentation."""
    text = fault.markdown()
    if "```python" not in text:
        return text
    words = "The example builds on these lines, which all examples of its page share:"
    return f"{text}\n\n{words}\n\n{PAGES[fault.page].code}"
