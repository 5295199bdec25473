"""Try shardwise with other versions of JAX, each in a fresh environment.

    python -m tests.probe                          # the installed one
    python -m tests.probe 0.11.0 0.12.0            # these
    python -m tests.probe 0.12.0 --python python3.13

For each version: whether it has every internal name that shardwise uses, with the signature that
it expects (`shardwise/_jax/probe.py`), and whether `shardwise demo --quick` then runs, which
simulates, checks and explains programs. The rows are those of the table in `docs/supported.md`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy>=2.0", "rich>=13", "markdown-it-py>=3", "typer>=0.15", "jinja2>=3.1")

# By its path: importing the package would compare the names, and raise the error, at once.
COMPARE = """
import runpy, sys
found = list(runpy.run_path(sys.argv[1])["differences"]())
print("; ".join(found))
sys.exit(bool(found))
"""


def environment(folder: Path, python: str, version: str) -> str:
    """Make an environment with this version of JAX, and return its Python."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    own = str(folder / "bin" / "python")
    install = [own, "-m", "pip", "install", "--quiet", "--no-compile", f"jax=={version}", *PACKAGES]
    subprocess.run(install, check=True)
    return own


def attempt(python: str) -> tuple[bool, str]:
    """Compare the names and run the demo; return whether both went well, and a row of a table."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        # Not in the checkout: what is imported is what PYTHONPATH says.
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run(
                [python, *command], env=env, cwd=folder, capture_output=True, text=True
            )

    show = "import sys, jax; print('%d.%d' % sys.version_info[:2], jax.__version__)"
    who = run("-c", show)
    if who.returncode:
        return False, f"{python}: {who.stderr}"
    names = run("-c", COMPARE, str(ROOT / "shardwise" / "_jax" / "probe.py"))
    demo = run("-m", "shardwise", "demo", "--quick")
    python_version, jax_version = who.stdout.split()
    told = "all there" if not names.returncode else names.stdout.strip() or names.stderr[-300:]
    ran = "runs" if not demo.returncode else f"fails: {(demo.stderr or demo.stdout)[-300:].strip()}"
    row = f"| {jax_version} | {python_version} | {told} | {ran} |"
    return not (names.returncode or demo.returncode), row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="of JAX; the installed one")
    parser.add_argument("--python", default=sys.executable, help="the Python to try it with")
    asked = parser.parse_args()
    print("| JAX | Python | internal names | demo |\n|---|---|---|---|", flush=True)
    passed = []
    if not asked.versions:
        ok, row = attempt(asked.python)
        passed.append(ok)
        print(row)
    for version in asked.versions:
        with tempfile.TemporaryDirectory(prefix="shardwise-probe-") as folder:
            ok, row = attempt(environment(Path(folder), asked.python, version))
        passed.append(ok)
        print(row, flush=True)
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
