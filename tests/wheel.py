"""Try a built wheel as a user gets it: installed in a fresh environment, without Flax.

    python -m tests.wheel dist

The folder holds one wheel and one sdist, as `python -m build` makes them (`make wheel`).
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

PROGRAM = """
import jax
import jax.numpy as jnp
import shardwise as sw
from jax.sharding import PartitionSpec as P

def total(x, *, mesh):
    body = lambda part: jax.lax.psum(part.sum(), "data")
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

@sw.case(mesh={"data": [1, 2, 4]})
def adds_up():
    return total, (jnp.arange(16.0),)
"""


def data_files() -> set[str]:
    """What a wheel has to hold beside Python: templates, exercises, the mark of a typed package."""
    listed = subprocess.run(
        ["git", "ls-files", "shardwise"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def check_contents(wheel: Path, sdist: Path) -> None:
    """Every file of the package is in both, and the sdist has what it takes to test it."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    lacking = sorted(data_files() - held)
    assert not lacking, f"{wheel.name} lacks {lacking[:5]}"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {*data_files(), "tests/conftest.py", "README.md", "LICENSE", "pyproject.toml"}
    lacking = sorted(wanted - names)
    assert not lacking, f"{sdist.name} lacks {lacking[:5]}"


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install it, and do what a user does first."""
    venv.create(folder / "env", with_pip=True)
    own = folder / "env" / "bin"
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(own / command[0]), *command[1:]], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    run("python", "-m", "pip", "install", "--quiet", str(wheel))
    version = wheel.name.split("-")[1]
    assert run("shardwise", "--version") == f"shardwise {version}\n"
    for name in ("flax", "optax", "orbax"):
        found = f"import importlib.util as u; print(u.find_spec({name!r}))"
        assert run("python", "-c", found) == "None\n", f"{name} came along"
    assert "all right" in run("shardwise", "check", "program.py")
    run("shardwise", "explain", "program.py", "--html", "page.html")
    assert "psum" in (folder / "page.html").read_text(encoding="utf-8")
    exercises = run("shardwise", "practice", "list")
    assert "mean" in exercises
    assert run("python", "-c", "import shardwise as sw; print(sw.mesh(data=8).size)") == "8\n"


def main(folder: str) -> None:
    (wheel,), (sdist,) = (sorted(Path(folder).glob(end)) for end in ("*.whl", "*.tar.gz"))
    check_contents(wheel, sdist)
    print(f"{wheel.name} and {sdist.name} are whole")
    with tempfile.TemporaryDirectory() as scratch:
        try_wheel(wheel.absolute(), Path(scratch))
    print("installed without Flax: --version, check, explain and practice work")


if __name__ == "__main__":
    main(*sys.argv[1:])
