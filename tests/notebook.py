"""Run a notebook without Jupyter, and store what its cells show.

    python -m tests.notebook examples/tour.ipynb [--html page.html]

Cells run in order in one namespace. The value of a last expression is shown as HTML where it has
`_repr_html_`, as text otherwise, and what is printed as text, as Jupyter does. With `--html` the
notebook is also written as a page, to be looked at in a browser.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import html
import io
import json
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """Return a notebook in format 4."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["nbformat"] == 4, found["nbformat"]
    return found


def run(notebook: Notebook) -> dict[str, Any]:
    """Run all cells, put their outputs into the notebook, and return the namespace."""
    space: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        cell["execution_count"], cell["outputs"] = number, _outputs(cell, number, space)
    return space


def _outputs(cell: dict[str, Any], number: int, space: dict[str, Any]) -> list[dict[str, Any]]:
    import linecache

    source, file = "".join(cell["source"]), f"<cell {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree = ast.parse(source, file)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, file, "exec"), space)
        value = None
        if isinstance(shown, ast.Expr):
            value = eval(compile(ast.Expression(shown.value), file, "eval"), space)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
        )
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": data,
            }
        )
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def page(notebook: Notebook) -> str:
    """Return the notebook as a plain page."""
    parts = []
    for cell in notebook["cells"]:
        source = html.escape("".join(cell["source"]))
        if cell["cell_type"] == "markdown":
            parts.append(f"<p style='white-space:pre-wrap'>{source}</p>")
            continue
        parts.append(f"<pre class=source>{source}</pre>")
        for output in cell["outputs"]:
            data = output.get("data", {})
            text = html.escape("".join(output.get("text") or data.get("text/plain", [])))
            parts.append("".join(data.get("text/html", [])) or f"<pre>{text}</pre>")
    style = (
        ":root{color-scheme:light dark}body{font:15px system-ui;max-width:60em;margin:2em auto;"
        "padding:0 1em}.source{background:#8882;padding:.6em}pre{overflow-x:auto}"
    )
    head = (
        '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    )
    return f"{head}<style>{style}</style>{''.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a notebook and store what its cells show.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--html", type=Path, help="Write it as a page, too.")
    asked = parser.parse_args()
    notebook = read(asked.notebook)
    run(notebook)
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    asked.notebook.write_text(text, encoding="utf-8")
    if asked.html:
        asked.html.write_text(page(notebook), encoding="utf-8")


if __name__ == "__main__":
    main()
