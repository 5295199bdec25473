"""A real Open MPI: `mpirun` starts the processes, and nothing else tells them who they are."""

from __future__ import annotations

from .jobs import check, run


def main() -> None:
    print(run(["mpirun", "--version"]).splitlines()[0])
    check("ompi", ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2], 2)


if __name__ == "__main__":
    main()
