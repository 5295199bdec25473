"""The pictures of the README: a verdict in a terminal and the page of explain, light and dark;
and the page of inspect.

    python -m docs.pictures.make

Pages are drawn by chromium; without one, only the terminal is.
"""

from __future__ import annotations

import base64
import io
import linecache
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

import shardwise as sw
from shardwise._cli.report import verdict_text

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
SIZE = {"width": 1180, "height": 760}

PROGRAM = """\
import jax
import jax.numpy as jnp
from jax import P


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def gradient(w, x, y, *, mesh):
    def per_device(w, x, y):
        return jax.lax.pmean(jax.grad(loss)(w, x, y), "data")

    specs = (P(), P("data"), P("data"))
    return jax.shard_map(per_device, mesh=mesh, in_specs=specs, out_specs=P())(w, x, y)


args = jnp.array([1.0, 2.0]), jnp.arange(16.0).reshape(8, 2), jnp.ones(8)
"""
"""The program of the README."""

RING = """\
import jax
import jax.numpy as jnp
from jax import P, lax


def ring_sum(x, *, mesh):
    n = mesh.shape["data"]
    to_the_right = [(i, (i + 1) % n) for i in range(n)]

    def body(rows):
        total = rows.sum(axis=0)
        travelling = total
        for _ in range(n - 1):
            travelling = lax.ppermute(travelling, "data", to_the_right)
            total = total + travelling
        return total[None]

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


args = (jnp.arange(24.0).reshape(8, 3),)
"""
"""The program that inspect steps through."""


def main() -> None:
    verdict = _verdict()
    for name, theme in (("light", DEFAULT_TERMINAL_THEME), ("dark", DIMMED_MONOKAI)):
        path = HERE / f"verdict-{name}.svg"
        path.write_text(_terminal(verdict, theme), encoding="utf-8")
        print(path)
    from tests.explain.browser import CHROMIUM, Browser

    if CHROMIUM is None:
        print(
            "there is no chromium: the pictures of the page are left as they are", file=sys.stderr
        )
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = _page(Path(folder) / "block.html")
        browser = Browser(Path(folder))
        browser.send("Emulation.setScrollbarsHidden", hidden=True)
        for name in ("light", "dark"):
            browser.open(page, theme=name, **SIZE)
            shot = browser.send("Page.captureScreenshot", format="png")
            path = HERE / f"page-{name}.png"
            path.write_bytes(base64.b64decode(shot["data"]))
            print(path)
        browser.open(_inspected(Path(folder) / "ring.html"), width=1180, height=620)
        browser.run("document.getElementById('next').click()")
        browser.run("document.getElementById('next').click()")
        shot = browser.send("Page.captureScreenshot", format="png")
        (HERE / "inspect.png").write_bytes(base64.b64decode(shot["data"]))
        print(HERE / "inspect.png")
        browser.close()


def _verdict() -> Text:
    """What `shardwise check` prints of the program."""
    module = _module("step.py", PROGRAM)
    found = sw.check(module.gradient, *module.args, mesh={"data": [1, 2, 4, 8]})
    head = Text.assemble(("$ ", "bold"), "shardwise check step.py\n")
    return head.append(verdict_text(found, "step.py:gradient", verbose=False))


def _module(name: str, program: str) -> ModuleType:
    """A program as if it were a file, its lines for those who look them up."""
    linecache.cache[name] = (len(program), None, program.splitlines(True), name)
    module = ModuleType(name.removesuffix(".py"))
    exec(compile(program, name, "exec"), module.__dict__)
    return module


def _inspected(path: Path) -> Path:
    """The ring, to step through."""
    module = _module("ring.py", RING)
    return sw.inspect(module.ring_sum, *module.args, mesh=sw.mesh(data=4)).save(path)


def _terminal(text: Text, theme: TerminalTheme) -> str:
    out = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False)
    out.print(text)
    drawn = out.export_svg(title="", theme=theme, unique_id="verdict")
    # The fonts of the reader will do: the picture asks no other host for one.
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def _page(path: Path) -> Path:
    """The transformer block of the gallery, at the size and on the mesh that it names."""
    sys.path.insert(0, str(EXAMPLES))
    import transformer_2d

    f, args = transformer_2d.large()
    mesh = sw.mesh(transformer_2d.transformer_block.explain_mesh)
    return sw.explain(f, *args, mesh=mesh, hardware="h200-node").save(path)


if __name__ == "__main__":
    main()
