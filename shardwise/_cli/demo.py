"""`shardwise demo`: show the library on programs that run in less than a minute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .files import refuse_unwritable

if TYPE_CHECKING:
    from rich.console import Console

DEVICES = (1, 2, 4, 8)
MANY = 1024


def demo(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Only 1 and 8 devices: a few seconds."),
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            metavar="FILE",
            help="Where to write the HTML page at the end; a temporary file by default.",
        ),
    ] = None,
) -> None:
    """Show in less than a minute what shardwise is for.

    The textbook data-parallel recipe on 1, 2, 4 and 8 virtual devices next to the right one, what
    check says about both, a deadlock found at once, and what the right one would send on 1024
    devices, as text and as an HTML page.
    """
    refuse_unwritable(page, "--page")
    from rich.console import Console

    console = Console(soft_wrap=False, highlight=False)
    programs = _load_programs()
    devices = (DEVICES[0], DEVICES[-1]) if quick else DEVICES
    with _compiled_quickly():
        _show_gradients(console, programs, devices)
        _show_check(console, programs, devices)
        _show_deadlock(console, programs)
        _show_traffic(console, programs, page or _temporary_page())
    _show_next(console)


def _load_programs() -> Any:
    """Return the demo's programs, under a file name that is not inside shardwise.

    Errors name the user's lines and leave out the library's. In the demo these are the user's.
    """
    import linecache
    import types

    path = Path(__file__).with_name("demo_programs.py")
    source = path.read_text(encoding="utf-8")
    linecache.cache[path.name] = (len(source), None, source.splitlines(True), path.name)
    programs = types.ModuleType(path.stem)
    exec(compile(source, path.name, "exec"), programs.__dict__)
    return programs


@contextlib.contextmanager
def _compiled_quickly() -> Iterator[None]:
    """Compile without most optimizations: each of these programs runs once."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def _show_gradients(console: Console, programs: Any, devices: Sequence[int]) -> None:
    import jax
    from rich.table import Table

    from .._engine.simulate import simulate
    from .._mesh import mesh

    console.rule("1. The textbook gradient is n times too large")
    console.print("\nTwo gradients of a data-parallel step. On one device they are the same.\n")
    _show_code(console, programs.textbook, programs.right, programs.split_batch)
    params, x, y = programs.make_problem(64, 32)
    expected = _last_bias(jax.jit(jax.grad(programs.loss))(params, x, y))
    table = Table("devices", "textbook", "right", "unsharded", "the textbook gradient is")
    for count in devices:
        gradients = [
            _last_bias(simulate(program, mesh=mesh(data=count))(params, x, y))
            for program in (programs.textbook, programs.right)
        ]
        table.add_row(
            str(count),
            *(f"{value:+.5f}" for value in (*gradients, expected)),
            _verdict(gradients[0], expected),
        )
    console.print(table)
    console.print(
        "One gradient entry, simulated on this one device. Real devices give the same numbers, "
        "with no error and no warning.\n"
    )


def _show_check(console: Console, programs: Any, devices: Sequence[int]) -> None:
    from .._analysis.fixes import check
    from .report import verdict_text

    console.rule("2. Nobody has to look for it: check says what is wrong, and where")
    args = programs.make_problem(64, 32)
    for program in (programs.textbook, programs.right):
        name = program.__name__
        console.print(f"\nsw.check({name}, params, x, y, mesh={{'data': {list(devices)}}})\n")
        verdict = check(program, *args, mesh={"data": devices})
        console.print(verdict_text(verdict, name, verbose=True))
    console.print(
        "\nIn pytest: assert sw.check(...). On the command line: shardwise check FILE.py\n"
    )


def _show_deadlock(console: Console, programs: Any) -> None:
    import jax.numpy as jnp

    from .._base.errors import DeadlockError
    from .._engine.simulate import simulate
    from .._mesh import mesh

    console.rule("3. A deadlock, at once")
    console.print("\nOnly the first device reaches the psum. A real mesh waits forever.\n")
    _show_code(console, programs.only_the_first, lines=True)
    try:
        simulate(programs.only_the_first, mesh=mesh(data=4))(jnp.arange(8.0))
    except DeadlockError as error:
        console.print(f"DeadlockError: {error}\n", style="red", markup=False)


def _temporary_page() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="shardwise-demo-")) / "right.html"


def _show_traffic(console: Console, programs: Any, page: Path) -> None:
    from .._analysis.explain import explain
    from .._mesh import mesh

    console.rule(f"4. What it would send on {MANY} devices, and what that costs")
    console.print(f"\nsw.explain(right, params, x, y, mesh=sw.mesh(data={MANY}))\n", markup=False)
    shapes = programs.problem_shapes(64 * MANY, 4096)
    report = explain(programs.right, *shapes, mesh=mesh(data=MANY), hardware="h200-node")
    console.print(str(report), markup=False, soft_wrap=True)
    report.save(page)
    console.print("\nTraced, not run: arguments may be shapes, and meshes of any size.")
    console.print("The same as a page, with pictures; open it in a browser:")
    console.print(f"{page}\n", markup=False, soft_wrap=True)


def _show_next(console: Console) -> None:
    console.rule("What to try next")
    console.print(
        """
A function of yours that has jax.shard_map somewhere inside:

    import shardwise as sw
    print(sw.check(your_function, *args, mesh={"data": [1, 2, 4, 8]}))
    sw.simulate(your_function, mesh=sw.mesh(data=8))(*args)
    print(sw.explain(your_function, *args, mesh=sw.mesh(data=1024)))

If it takes no keyword mesh, it runs with that mesh as the ambient one.
simulate and explain also take a function with a mesh of its own: leave mesh= out.
check needs mesh=, and a function that can run on each of those meshes.

On the command line, in a checkout:

    shardwise check examples/                    all programs of the gallery
    shardwise explain examples/transformer_2d.py --html block.html
    shardwise rule SW401                         what a finding means
    shardwise practice start                     exercises, with a judge
""",
        markup=False,
    )


def _show_code(console: Console, *functions: Callable[..., Any], lines: bool = False) -> None:
    import inspect

    from rich.syntax import Syntax

    for function in functions:
        source, start = inspect.getsourcelines(function)
        style = {"line_numbers": lines, "start_line": start, "background_color": "default"}
        console.print(Syntax("".join(source), "python", **style))


def _last_bias(grads: Any) -> float:
    return float(grads[-1][1][0])


def _verdict(gradient: float, expected: float) -> str:
    factor = gradient / expected
    return "right" if abs(factor - 1) < 1e-3 else f"{factor:.3f} times too large"
