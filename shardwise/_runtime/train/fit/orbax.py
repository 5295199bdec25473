"""Read and write the files of checkpoints with Orbax: arrays and a record."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...._base.durable import unused
from ...._base.errors import ShardwiseError
from ...hosts import others
from .arrays import by_name, rebuild, sum_of
from .record import Record, Unusable, read_record


class CheckpointFiles:
    """A folder with a subfolder for each checkpoint, named after its step.

    Args:
        folder: The folder.
        keep: How many checkpoints to keep.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        import orbax.checkpoint as ocp

        self._args = ocp.args
        self._manager = _make_manager(folder, keep)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, valid or not."""
        names = [p.name for p in self.folder.iterdir() if p.name.isdecimal() and p.is_dir()]
        return sorted(int(name) for name in names if name == str(int(name)))

    def where(self, step: int) -> str:
        """Return the name of a checkpoint in messages."""
        return f"checkpoint {step} in {self.folder}"

    def write(self, step: int, state: dict[str, np.ndarray], about: dict[str, Any]) -> None:
        """Write a checkpoint; it appears complete or not at all."""
        args = self._args
        state = {name: x for name, x in state.items() if x.size}  # Orbax stores no empty arrays
        stored = self._manager.save(
            step, args=args.Composite(state=args.StandardSave(state), about=args.JsonSave(about))
        )
        if not stored:
            raise RuntimeError(f"Orbax left out step {step}: there is a later one")

    def record(self, step: int) -> Record:
        """Return the record of a checkpoint.

        Raises:
            Unusable: It is damaged, or of another step.
        """
        request = self._args.Composite(about=self._args.JsonRestore())
        with self._reading(step):
            facts = self._manager.restore(step, args=request)["about"]
            return read_record(facts, step, self.where(step))

    def arrays(self, step: int, record: Record, like: Any) -> Any:
        """Return the arrays of a checkpoint, compared with its record.

        Raises:
            Unusable: They are not what was stored.
        """
        leaves = by_name(like)
        targets = {name: np.empty(x.shape, x.dtype) for name, x in leaves.items() if x.size}
        request = self._args.Composite(state=self._args.StandardRestore(targets))
        with self._reading(step):
            state = self._manager.restore(step, args=request)["state"]
            for name in targets:
                if sum_of(state[name]) != record.sums[name]:
                    raise Unusable(f"{name} does not match its checksum")
            return rebuild(like, list(leaves), state)

    @contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        """Run the block; any error of Orbax in it means that the checkpoint is damaged."""
        try:
            yield
        except (ShardwiseError, MemoryError, Unusable):
            raise
        except Exception as error:
            problem = f"it cannot be read: {type(error).__name__}: {error}"[:500]
            if isinstance(error, PermissionError) or "PERMISSION_DENIED" in str(error):
                raise ShardwiseError(
                    problem,
                    where=self.where(step),
                    rule="The files may be undamaged.",
                    remedy="let this user read it; or delete it, to resume from the one before.",
                ) from error
            raise Unusable(" ".join(problem.split())[:200]) from error

    def set_aside(self, step: int, kind: str) -> Path:
        """Rename a checkpoint, so that its step can be stored again; return its new path."""
        path = unused(self.folder / f"{step}.{kind}")
        (self.folder / str(step)).rename(path)
        self._manager.reload()
        return path

    def close(self) -> None:
        """Close Orbax's manager."""
        self._manager.close()


def _make_manager(folder: Path, keep: int) -> Any:
    import orbax.checkpoint as ocp

    # Orbax would have all processes wait for each other at every checkpoint.
    isolation = ocp.options.MultiprocessingOptions()
    if others.count() > 1:
        process = others.index()
        isolation = ocp.options.MultiprocessingOptions(
            primary_host=process,
            active_processes={process},
            barrier_sync_key_prefix=f"process{process}",
        )
    # Our own thread writes, one checkpoint at a time: that of Orbax would outlive a failure.
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        create=False,
        enable_async_checkpointing=False,
        multiprocessing_options=isolation,
    )
    handlers = {
        "state": ocp.StandardCheckpointHandler(multiprocessing_options=isolation),
        "about": ocp.JsonCheckpointHandler(multiprocessing_options=isolation),
    }
    return ocp.CheckpointManager(folder, options=options, item_handlers=handlers)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the threads of a failed reader from printing that the event loop is closed."""
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            previous(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    except Unusable:
        time.sleep(0.1)  # the others fail right after the first
        raise
    finally:
        sys.unraisablehook = previous
