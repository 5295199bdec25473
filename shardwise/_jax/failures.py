"""What JAX, XLA and the libraries of collectives say when they fail, recognised by their texts."""

from __future__ import annotations

import jax

from .._base.error_texts import CONNECTION_LOST
from .._base.errors import text_of

NO_MEMORY_IN_LOG = ("bad_alloc", "ut of memory", "annot allocate memory", "pthread_create() failed")
"""What a process out of memory logs: by the allocator, XLA, the kernel or thread creation."""

NCCL_FAILED = "NCCL operation"

NO_CUDA_PLUGIN = "topology not implemented"
NO_VISIBLE_GPU = "No visible GPU"
EXHAUSTED = "RESOURCE_EXHAUSTED"
WAITED_TOO_LONG = "DEADLINE_EXCEEDED"
EXISTS = "ALREADY_EXISTS"
OTHER_INCARNATION = "different incarnation"
CLOSED_OVER_REF = "AbstractRef"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device, or the host for it, ran out of memory."""
    if isinstance(error, MemoryError):
        return True
    text = text_of(error)
    return isinstance(error, jax.errors.JaxRuntimeError) and (
        EXHAUSTED in text or "out of memory" in text.lower()
    )


def logs_no_memory(log: str) -> bool:
    """Return whether a process that logged this ran out of memory."""
    return any(text in log for text in NO_MEMORY_IN_LOG)


def is_connection_lost(error: BaseException) -> bool:
    """Return whether this is an error of a collective whose connection to a process broke."""
    text = text_of(error)
    return isinstance(error, jax.errors.JaxRuntimeError | ValueError | RuntimeError) and (
        ("Gloo" in text and ("failed" in text or "closed" in text.lower()))
        or any(lost in text for lost in (*CONNECTION_LOST, NCCL_FAILED))
    )


def is_deadline(error: BaseException) -> bool:
    """Return whether a value of another process did not arrive within the time allowed."""
    return WAITED_TOO_LONG in str(error)


def is_join_timeout(error: BaseException) -> bool:
    """Return whether not all processes joined within the time allowed."""
    return is_deadline(error) or "imed out" in str(error)


def is_duplicate_process(error: BaseException) -> bool:
    """Return whether another process with this number has joined already."""
    return any(text in str(error) for text in (EXISTS, OTHER_INCARNATION))


def is_deleted(error: BaseException) -> bool:
    """Return whether an array was used after it was deleted or donated."""
    return "deleted" in text_of(error)


def is_closed_over_ref(error: BaseException) -> bool:
    """Return whether a `shard_map` closes over a mutable ref."""
    return CLOSED_OVER_REF in text_of(error)
