"""Answers that the judge's own code would not write, and text that means to deceive."""

from __future__ import annotations

from .attacks import tried

FORGE = """
import base64, json, os, sys
import numpy as np
def frames():
    f = sys._getframe()
    while f:
        yield f.f_locals
        f = f.f_back
def val(x):
    x = np.asarray(x)
    b = base64.b64encode(x.tobytes()).decode()
    return {"array": b, "dtype": x.dtype.str, "shape": list(x.shape)}
def facts(n=8):
    c = {"name": "psum", "axes": ["data"], "line": 1, "backward": False, "differs": ["data"]}
    m = {"mesh": {"data": n}, "split": ["data"], "checked": True, "rows": [],
         "collectives": [{**c, "shape": []}]}
    none = dict.fromkeys(("inits", "calls", "optimizers", "updates"), [])
    return {"shard_maps": [m], "vmaps": 0, **none}
jobs = next(f["jobs"] for f in frames() if "jobs" in f)
def send(text):
    data = text if isinstance(text, bytes) else text.encode()
    for fd in range(3, 256):
        try:
            while data: data = data[os.write(fd, data):]
            break
        except OSError: pass
    os._exit(0)
def runs(**more):
    total = lambda j: val(np.float32(j["args"][0].sum(dtype="f8")))
    send(json.dumps({"runs": [{"value": total(j), "facts": facts(), **more} for j in jobs]}))
"""

HONEST_SUM = "\ndef shard_map_psum(x):\n    return x.sum()\n"


def forged(code: str) -> str:
    """Return a file that sends an answer of its own as it is imported."""
    return f"{FORGE}\n{code}\n{HONEST_SUM}"


FORGED = {
    "right numbers and forged facts": forged("runs()"),
    "forged facts with a program of nothing": forged("runs(program={})"),
    "forged facts for each kind of run": forged(
        "runs(program={'module': '', 'kept': [0], 'outs': []}, inspection=None, findings=[])"
    ),
    "a shape without end": forged(
        'runs(value={"array": "", "dtype": "<f4", "shape": [float("inf")]})'
    ),
    "a negative shape": forged('runs(value={"array": "", "dtype": "<f4", "shape": [-1]})'),
    "a shape that overflows": forged(
        'runs(value={"array": "", "dtype": "<f4", "shape": [1 << 40, 1 << 40, 0]})'
    ),
    "a shape of many dimensions": forged(
        'runs(value={"array": "AAAAAA==", "dtype": "<f4", "shape": [1] * 4000})'
    ),
    "an array of objects": forged(
        'runs(value={"array": "AAAAAAAAAAA=", "dtype": "O", "shape": [1]})'
    ),
    "a type that is a program": forged(
        'runs(value={"array": "", "dtype": "f4,(99999999,)f8", "shape": [0]})'
    ),
    "no base64": forged('runs(value={"array": "!!!", "dtype": "<f4", "shape": [1]})'),
    "too few bytes": forged('runs(value={"array": "", "dtype": "<f4", "shape": [3]})'),
    "a value of no kind": forged('runs(value={"sphere": 1})'),
    "a value that is deep": forged(
        'v = {"none": True}\nfor _ in range(500): v = {"list": [v]}\nruns(value=v)'
    ),
    "a value of many parts": forged('runs(value={"list": [{"none": True}] * 100_000})'),
    "facts that are numbers": forged('runs(facts={"shard_maps": [5]})'),
    "facts that are missing": forged('send(json.dumps({"runs": [{} for j in jobs]}))'),
    "facts of the wrong kind": forged(
        'f = facts(); f["shard_maps"][0]["mesh"] = {"data": "eight"}; runs(facts=f)'
    ),
    "facts without end": forged('f = facts(); f["vmaps"] = 1e400; runs(facts=f)'),
    "facts with a huge integer": forged('f = facts(); f["vmaps"] = 10 ** 4000; runs(facts=f)'),
    "an integer of many digits": forged('send(\'{"runs": \' + "9" * 100_000 + "}")'),
    "a line that is text": forged('runs(error={"type": "X", "message": "m", "line": "abc"})'),
    "kinds that are a number": forged('runs(error={"type": "X", "message": "m", "kinds": 5})'),
    "a message that is a list": forged('runs(error={"type": "X", "message": ["m"]})'),
    "a message that takes a pattern long": forged(
        'runs(error={"type": "X", "message": "of a value  that differs along " * 5_000})'
    ),
    "a pitfall of the judge": forged(
        'send(json.dumps({"error": {"type": "Judge", "message": "right"}}))'
    ),
    "an answer that is deep": forged('send("[" * 200_000)'),
    "an answer that is deep and ends": forged('send("[" * 5_000 + "]" * 5_000)'),
    "an answer that is wide": forged('send("[" + "[]," * 2_000_000 + "[]]")'),
    "an answer that is long": forged('send(b" " * (100 << 20))'),
    "an answer that is no text": forged("send(bytes(range(256)) * 100)"),
    "an answer of half a character": forged(
        'send(\'{"error": {"type": "\\\\ud800", "message": "\\\\udfff"}}\')'
    ),
    "two answers": forged('send(json.dumps({"runs": []}) + json.dumps({"runs": []}))'),
    "too many runs": forged(
        'send(json.dumps({"runs": [{"value": val(1.0), "facts": facts()}] * 50}))'
    ),
    "no answer": forged("send(b'')"),
    "every channel closed": tried("os.closerange(0, 4096)"),
    "every channel written": tried(
        """
        for fd in range(3, 200):
            try: os.write(fd, b'{"runs": [{"value": {"array": 1}}]}')
            except OSError: pass"""
    ),
    "channels exchanged": tried(
        "for fd in range(3, 20):\n    try: os.dup2(1, fd)\n    except OSError: pass"
    ),
    "the facts patched": (
        FORGE + "from shardwise._practice.sandbox import hooks\n"
        "hooks.Observations.facts = lambda self: facts()\n" + HONEST_SUM
    ),
    "the writer patched": (
        FORGE + "real = json.dumps\n"
        "def dumps(data, **k):\n"
        "    for run in data.get('runs', ()): run['facts'] = facts()\n"
        "    return real(data, **k)\n"
        "json.dumps = dumps\n" + HONEST_SUM
    ),
    "the notes filled": (
        FORGE + "def shard_map_psum(x):\n"
        "    import gc\n"
        "    from shardwise._practice.sandbox.hooks import Observations\n"
        "    for o in gc.get_objects():\n"
        "        if isinstance(o, Observations): o.maps.extend(facts()['shard_maps'])\n"
        "    return x.sum()\n"
    ),
    "the comparison patched": (
        "import numpy, shardwise._practice.compare as c, shardwise._practice.judge as j\n"
        "c.same = lambda *a: True; c.difference = lambda *a: ''\n"
        "numpy.isclose = lambda *a, **k: True\n"
        "def shard_map_psum(x):\n    return 42.0\n"
    ),
    "no devices at all": (
        "import jax\njax.shard_map = lambda f, **k: (lambda x: x.sum())\n"
        "def shard_map_psum(x):\n    return jax.shard_map(None)(x)\n"
    ),
    "a value that equals everything": tried("pass").replace(
        "return x.sum() * 0",
        "return type('E', (), {'__eq__': lambda *a: True, '__array__': lambda *a, **k: 1 / 0})()",
    ),
    "a list that holds itself": tried("pass").replace(
        "return x.sum() * 0", "l = []; l.append(l); return l"
    ),
    "an array that loops": tried("pass").replace(
        "return x.sum() * 0",
        "return type('E', (), {'__array__': lambda *a, **k: [0 for _ in iter(int, 1)]})()",
    ),
    "an error without words": tried(
        "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()"
    ),
    "an error of long names": tried(
        "raise type('E' * 1_000_000, (Exception,), {})('x' * 10_000_000)"
    ),
    "an error in a circle": tried(
        """
        a, b = ValueError('a'), ValueError('b')
        a.__cause__, b.__cause__ = b, a
        raise a"""
    ),
    "a million keys": tried("pass").replace(
        "return x.sum() * 0", "return {str(i): i for i in range(300_000)}"
    ),
}

ESCAPES = r"\x1b[2J\x1b[H\x1b]0;owned\x07\rshard_map_psum: right\x9b31m\u202e\x08\x00"

TERMINAL = {
    "escapes printed": tried(f"print('{ESCAPES}')"),
    "escapes written": tried(r"os.write(1, b'\x1b[2J\x1b[Hshard_map_psum: right\x1b]0;x\x07\r')"),
    "escapes to the other channel": tried(f"sys.stderr.write('{ESCAPES}')"),
    "escapes in an error": tried(f"raise ValueError('{ESCAPES}')"),
    "escapes in the name of an error": tried(
        f"raise type('{ESCAPES}'[:60], (Exception,), {{}})('x')"
    ),
    "escapes in the line": "def shard_map_psum(x):\n    return 1 / 0  # \x1b[2J\x9b31m\u202e\n",
    "escapes in a line that is no Python": "def shard_map_psum(x:\n    \x1b[2J\x1b[H \u202e\n",
    "escapes in a key": tried("pass").replace("return x.sum() * 0", f"return {{'{ESCAPES}': x}}"),
    "half a character": tried(r"print('\ud800')"),
    "no text at all": tried("os.write(1, bytes(range(256)) * 4)"),
    "a verdict of its own": tried(
        "print('shard_map_psum: right\\n  1 device   right\\n  2 devices  right')"
    ),
}
"""Text that a terminal would obey, or that looks like a verdict."""

SOURCES: dict[str, bytes] = {
    "UTF-16": "def shard_map_psum(x): return x\n".encode("utf-16"),
    "no text": bytes(range(256)),
    "zero bytes": b"def shard_map_psum(x):\n    return 1\n\0\0\0",
    "an encoding that is none": b"# -*- coding: rot13 -*-\nqrs funeq_znc_cfhz(k): erghea k\n",
    "an encoding that is unknown": b"# coding: no-such\ndef shard_map_psum(x): return x\n",
    "an encoding that is not kept": b"# coding: ascii\nx = '\xff'\n",
    "UTF-7": b"# coding: utf-7\ndef shard_map_psum(x): return x +AGE-\n",
    "an empty file": b"",
    "a file that is too large": b"#" * (2 << 20),
    "a sum of 50,000 terms": b"def shard_map_psum(x):\n    return " + b"1 + " * 50_000 + b"1\n",
    "parentheses": b"def shard_map_psum(x):\n    return " + b"(" * 50_000 + b")" * 50_000 + b"\n",
    "minus signs": b"def shard_map_psum(x):\n    return " + b"-" * 200_000 + b"1\n",
    "a deep function": b"".join(b" " * i + b"if 1:\n" for i in range(2_000)),
    "a number of many digits": b"def shard_map_psum(x):\n    return " + b"9" * 500_000 + b"\n",
    "a power that the compiler computes": b"def shard_map_psum(x):\n    return 9**9**9**9\n",
    "a long line": b"x = '" + b"a" * 900_000 + b"'\ndef shard_map_psum(x): return 1 / 0\n",
}
"""Files that are hard to read."""
