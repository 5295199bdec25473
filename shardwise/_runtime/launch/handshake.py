"""Mutual authentication of two launchers with a job secret that neither sends.

The first launcher sends a nonce. The other one answers with its description, another nonce and a
proof: an HMAC of the first nonce and its answer under the secret. The first launcher proves its
knowledge of the secret in the same way. Both derive the key of the connection from the two nonces.

Without a secret the same protocol runs with an empty one: it rejects accidental connections, but
admits any client that implements the protocol and can reach the port.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from ..._base.errors import ShardwiseError
from .wire import Wire, shown

PROTOCOL = 2
VARIABLE = "SHARDWISE_SECRET"
MIN_LENGTH = 16
"""The minimum number of characters of a secret."""


class RejectedError(Exception):
    """The other side is not a launcher of this job; the message is the reason, as a clause."""


def read_secret(path: Path | None) -> bytes:
    """Return the job secret from a file or from the environment; empty if there is none."""
    source = f"the file {str(path)!r}" if path is not None else f"the variable {VARIABLE}"
    try:
        text = os.environ.get(VARIABLE, "") if path is None else path.read_text(encoding="utf-8")
        open_to_all = path is not None and path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_secret(source, f"it cannot be read: {error}") from None
    secret = text.strip()
    if path is None and not secret:
        return b""
    if len(secret) < MIN_LENGTH:
        raise _bad_secret(source, f"it has {len(secret)} characters")
    if open_to_all:
        raise _bad_secret(source, "other users may read it", f"chmod 600 {path}")
    return secret.encode()


def _bad_secret(where: str, what: str, remedy: str = "") -> ShardwiseError:
    return ShardwiseError(
        f"{what}.",
        where=f"the job secret in {where}",
        rule=f"It is a text of at least {MIN_LENGTH} characters, the same on all machines, "
        "readable by this user only.",
        remedy=remedy or "head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE",
    )


def admit(wire: Wire, secret: bytes) -> dict[str, Any]:
    """Authenticate a launcher that joins; return its description.

    Raises:
        RejectedError: It is not a launcher of this job.
        OSError: The connection is gone.
    """
    nonce = secrets.token_hex(16)
    wire.send(shardwise="launch", protocol=PROTOCOL, nonce=nonce)
    try:
        answer = wire.receive()
    except ValueError as error:
        raise RejectedError(str(error)) from None
    reason = _unfit(answer) or _unproved(secret, answer, nonce)
    if reason:
        wire.send(rejected=reason)
        raise RejectedError(reason)
    nonces = answer["nonce"] + nonce
    wire.send(proof=_mac(secret, "lead", nonces))
    wire.secure(_key(secret, nonces), "lead", "follow")
    return answer


def join(wire: Wire, secret: bytes, hello: dict[str, Any]) -> None:
    """Authenticate with the first launcher, in both directions.

    Raises:
        RejectedError: It is not a launcher of this job, or rejects this one.
        OSError: The connection is gone.
    """
    try:
        greeting = wire.receive()
        if greeting.get("shardwise") != "launch" or not isinstance(greeting.get("nonce"), str):
            raise RejectedError("the program there is not shardwise launch of this version")
        if greeting.get("protocol") != PROTOCOL:
            raise RejectedError(_other_version(greeting.get("protocol")))
        nonce = secrets.token_hex(16)
        answer = {**hello, "protocol": PROTOCOL, "nonce": nonce}
        wire.send(**answer, proof=_mac(secret, "follow", greeting["nonce"] + _canonical(answer)))
        verdict = wire.receive()
    except ValueError as error:
        raise RejectedError(str(error)) from None
    if "rejected" in verdict:
        raise RejectedError(shown(str(verdict["rejected"]), 300).strip("'\""))
    nonces = nonce + greeting["nonce"]
    if not _same(verdict.get("proof"), _mac(secret, "lead", nonces)):
        raise RejectedError("its job secret is another one")
    wire.secure(_key(secret, nonces), "follow", "lead")


def _unfit(answer: dict[str, Any]) -> str:
    """Return why this is not the answer of a launcher; "" if it may be one."""
    if answer.get("protocol") != PROTOCOL:
        is_ours = {"node", "signature"} <= answer.keys()
        if is_ours:
            return _other_version(answer.get("protocol"))
        return f"it sent {shown(json.dumps(answer))}, which is not a message of shardwise launch"
    fields = {"node": int, "processes": int, "signature": dict, "nonce": str, "proof": str}
    for name, kind in fields.items():
        if type(answer.get(name)) is not kind:
            return f"its {name} is {shown(repr(answer.get(name)))}"
    if answer["processes"] < 1:
        return f"its number of processes is {answer['processes']}"
    return ""


def _other_version(protocol: Any) -> str:
    return (
        f"it is of another version of shardwise (protocol {shown(repr(protocol))}, here {PROTOCOL})"
    )


def _unproved(secret: bytes, answer: dict[str, Any], nonce: str) -> str:
    signed = {name: value for name, value in answer.items() if name != "proof"}
    expected = _mac(secret, "follow", nonce + _canonical(signed))
    if _same(answer["proof"], expected):
        return ""
    hint = "" if secret else f"; the launcher of machine 0 has none (--secret-file, {VARIABLE})"
    return f"its job secret is another one{hint}"


def _same(proof: Any, expected: str) -> bool:
    return isinstance(proof, str) and hmac.compare_digest(proof.encode(), expected.encode())


def _mac(secret: bytes, role: str, text: str) -> str:
    return hmac.new(secret, f"{role} {text}".encode(), hashlib.sha256).hexdigest()


def _key(secret: bytes, nonces: str) -> bytes:
    return hmac.new(secret, f"key {nonces}".encode(), hashlib.sha256).digest()


def _canonical(message: dict[str, Any]) -> str:
    return json.dumps(message, sort_keys=True)
