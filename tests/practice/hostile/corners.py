"""Less usual ways out: what a process inherits, what it leaves, what its objects pretend.

They are written as those of `attacks` are, with the same placeholders.
"""

from __future__ import annotations

from .attacks import all_of, tried

DESCRIPTORS = all_of(
    inherited_files="""
        import stat
        for fd in range(3, 1024):
            try: mode = os.fstat(fd).st_mode
            except OSError: continue
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISSOCK(mode):
                print('ESCAPED', fd, oct(mode))""",
    folders_by_descriptor="""
        for fd in range(0, 1024):
            try: print('ESCAPED', os.listdir(fd))
            except OSError: pass""",
    secret_relative_to_descriptors="""
        for fd in range(0, 1024):
            try: print('ESCAPED', os.open('..' + '/..' * 20 + '@SECRET@', os.O_RDONLY, dir_fd=fd))
            except OSError: pass""",
    listed_by_proc="""
        place = '/proc/self/fd/'
        for fd in os.listdir(place): print('ESCAPED', os.readlink(place + fd))""",
    listed_by_dev="print('ESCAPED', os.listdir('/dev/fd'))",
    opened_by_proc="""
        # Its own pipes, which Landlock alone lets it open again, are no way out.
        for pid in (os.getppid(), @JUDGE@):
            for fd in range(64):
                try: print('ESCAPED', os.open(f'/proc/{pid}/fd/{fd}', os.O_RDONLY))
                except OSError: pass""",
    opened_by_thread="""
        for pid in (os.getppid(), @JUDGE@):
            for fd in range(64):
                try: print('ESCAPED', os.open(f'/proc/{pid}/task/{pid}/fd/{fd}', os.O_RDONLY))
                except OSError: pass""",
    read_from_what_is_written="""
        import stat
        for fd in range(1, 64):
            try:
                if stat.S_ISFIFO(os.fstat(fd).st_mode): print('ESCAPED', os.read(fd, 100))
            except OSError: pass""",
    input_of_the_judge="""
        if os.read(0, 100): print('ESCAPED')""",
    terminal_of_the_judge="print('ESCAPED', os.open('/dev/tty', os.O_RDWR))",
    keys_typed_for_the_judge="""
        import fcntl
        for fd in (0, 1, 2):
            try: fcntl.ioctl(fd, 0x5412, b'x'); print('ESCAPED')
            except OSError: pass""",
    descriptors_sent="""
        import socket
        a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0]); print('ESCAPED')""",
    memory_as_a_program="""
        f = raw((319, 279), b'x', 0)
        if f >= 0: print('ESCAPED')""",
    answer_held_open="""
        import time
        for fd in range(3, 64):
            try: os.write(fd, b'{"runs": [' * 6000)
            except OSError: pass
        time.sleep(10_000)""",
    larger_pipes="""
        import fcntl
        kept = []
        while True:
            kept.append(os.pipe()); fcntl.fcntl(kept[-1][1], 1031, 1 << 20)
            os.set_blocking(kept[-1][1], False); os.write(kept[-1][1], bytes(1 << 20))""",
)

LEFTOVERS = {
    **all_of(
        rooms_of_later_runs="""
            for i in range(3000): os.mkdir(f'../{i}') if not os.path.exists(f'../{i}') else None""",
        rooms_of_later_runs_deep="""
            for i in range(1, 380):
                try: os.makedirs(f'../{i}/d/d/d')
                except OSError: pass""",
        files_in_place_of_rooms="""
            for i in range(380):
                try: open(f'../{i}', 'x').close()
                except OSError: pass""",
        its_room_removed="import shutil; shutil.rmtree(os.getcwd())",
        every_room_removed="import shutil; shutil.rmtree('..', ignore_errors=True)",
        its_room_renamed="os.rename(os.getcwd(), '../renamed')",
        rooms_that_are_locked="""
            import fcntl
            f = os.open('..', os.O_RDONLY); fcntl.flock(f, fcntl.LOCK_EX)""",
        packages_that_are_locked="""
            import fcntl, flax, shardwise
            for m in (flax, shardwise): fcntl.flock(os.open(m.__file__, os.O_RDONLY), 2)""",
        rooms_that_are_full="""
            for i in range(390):
                try: open(f'../f{i}', 'wb').write(bytes(1 << 20))
                except OSError: pass""",
        rooms_without_rights="""
            os.umask(0o777)
            os.mkdir('../a', 0); os.mkdir('../b', 0); open('../c', 'w').close()""",
        modules_left_for_the_next="""
            for n in ('sitecustomize', 'usercustomize', 'json', 'jax', 'numpy', 'flax'):
                for p in ('.', '..'):
                    f = open(f'{p}/{n}.py', 'w')
                    f.write('print("ESC" "APED")'); f.close()""",
        start_file_in_a_writable_place="""
            import site
            for p in (*sys.path, site.getusersitepackages(), sys.prefix, sys.base_prefix, '/tmp'):
                try: open(os.path.join(p or '.', 'a.pth'), 'w').write('import os')
                except OSError: continue
                if os.path.realpath(p or '.') not in (os.getcwd(), os.path.dirname(os.getcwd())):
                    print('ESCAPED', p)""",
        libraries_preloaded="""
            os.environ['LD_PRELOAD'] = os.environ['PYTHONSTARTUP'] = '/tmp/x'
            libc.putenv(b'LD_PRELOAD=/tmp/x')
            import subprocess
            subprocess.run([sys.executable, '-c', '0']); print('ESCAPED')""",
        an_end_that_is_none="os._exit = lambda code: None",
        an_end_that_goes_on_as_the_nursery="""
            import gc
            from shardwise._practice.sandbox import nursery
            os._exit = lambda code: None
            nursery._kill = lambda pid: None
            for o in gc.get_objects():
                if isinstance(o, nursery.Nursery):
                    o.talk.sendall(b'{"walls": {}}\\n'); print('ESCAPED')""",
        work_at_the_end="""
            import atexit, threading, weakref
            def late(*_):
                for fd in range(3, 64):
                    try: os.write(fd, b'{"runs": []}')
                    except OSError: pass
            atexit.register(late); threading._register_atexit(late)
            weakref.finalize(sys.modules['os'], late)""",
        clock_turned_back="""
            import time
            for n in ('time', 'monotonic', 'perf_counter'): setattr(time, n, lambda: 0.0)
            time.clock_settime(time.CLOCK_REALTIME, 0.0); print('ESCAPED')""",
        clock_of_its_own="""
            if libc.unshare(0x80) == 0: print('ESCAPED')""",
        signal_that_looks_like_a_limit="import signal; signal.raise_signal(signal.SIGXCPU)",
        stopped_by_itself="os.kill(os.getpid(), 19)",
        stopped_in_a_thread="""
            import signal, threading, time
            threading.Thread(target=lambda: signal.raise_signal(signal.SIGSTOP)).start()
            time.sleep(10_000)""",
        lock_of_python_kept="ctypes.PyDLL(None).sleep(100_000)",
        lock_of_jax_kept="""
            import jax, jax.numpy as jnp
            def again(v): return jax.jit(lambda u: u @ u)(jnp.ones((64, 64))).sum() * v
            jax.jit(lambda v: jax.pure_callback(again, v, v))(x.sum()).block_until_ready()
            while True: pass""",
        program_without_end="""
            import jax
            def f(v):
                for _ in range(10 ** 7): v = v + 1
                return v
            jax.jit(f)(x)""",
    )
}
"""What could harm the next run: an honest file is judged after each."""


def returned(expression: str, before: str = "pass") -> str:
    """Return a solution whose result is an odd object."""
    return tried(before).replace("return x.sum() * 0", f"return {expression}")


LIE = "type('E', ({bases}), {{{members}}})({args})"


def lie(members: str, bases: str = "", args: str = "") -> str:
    """Return a solution whose result is an object with these members."""
    return returned(LIE.format(bases=bases, members=members, args=args))


OBJECTS = {
    "an object of every class": lie("'__class__': __import__('numpy').ndarray"),
    "an object that ends the process": lie("'__array__': lambda *a, **k: os._exit(0)"),
    "an object that raises an exit": lie("'__array__': lambda *a, **k: sys.exit(0)"),
    "an object without attributes": lie("'__getattribute__': lambda s, n: 1 / 0"),
    "an object that answers otherwise each time": lie(
        "'__array__': lambda s, *a, **k: __import__('numpy').random.rand()"
    ),
    "an array whose type is forged": lie(
        "'dtype': property(lambda s: 'O'), 'size': property(lambda s: -1)",
        "__import__('numpy').ndarray,",
        "shape=(2,)",
    ),
    "a dictionary without end": lie(
        "'items': lambda s: iter(lambda: ('a', 1), 0)", "dict,", "{'a': 1}"
    ),
    "a list without end": lie("'__iter__': lambda s: iter(int, 1)", "list,", "[1]"),
    "a key without end": returned(
        "{type('E', (str,), {'__str__': lambda s: 'x' * (1 << 40)})(): 1}"
    ),
    "a text that encodes as another": tried(
        """
        import json
        class T(str):
            def encode(self, *a): return b'{"runs": [{"value": {"none": true}}]}'
        real = json.dumps
        json.dumps = lambda *a, **k: T(real(*a, **k))"""
    ),
    "a value of a trace that has ended": returned(
        "kept[0]", "import jax\n    global kept\n    kept = []\n    jax.jit(kept.append)(x)"
    ),
    "an array that was deleted": returned("y", "pass").replace(
        "    return y", "    y = x + 0\n    y.delete()\n    return y"
    ),
    "an array of random keys": returned("__import__('jax').random.key(0)"),
    "a tree of a registered class": returned(
        "E()",
        "import jax\n    global E\n    class E: pass\n"
        "    jax.tree_util.register_pytree_node(E, lambda e: 1 / 0, lambda *a: E())",
    ),
    "equality patched": (
        "import numpy as np, jax, jax.numpy as jnp\n"
        "for m in (np, jnp):\n"
        "    for n in ('allclose', 'array_equal', 'isclose', 'equal', 'all'):\n"
        "        setattr(m, n, lambda *a, **k: True)\n"
        "np.testing.assert_allclose = lambda *a, **k: None\n"
        "def shard_map_psum(x):\n    return 7.0\n"
    ),
    "an audit hook": tried("sys.addaudithook(lambda e, a: os._exit(0) if 'open' in e else None)"),
    "an audit hook that raises": tried("sys.addaudithook(lambda e, a: 1 / 0)"),
    "an error handler without end": tried(
        """
        import codecs
        codecs.register_error('replace', lambda e: ('x' * (1 << 34), e.end))
        print('\\udcff')"""
    ),
    "streams that raise": tried("sys.stdout = sys.stderr = None; sys.stdin = 1 / 0"),
    "writes patched": tried(
        "real = os.write\nos.write = lambda fd, data: real(fd, b'{}') and len(data)"
    ),
    "a hard recursion": tried(
        "import json; sys.setrecursionlimit(10 ** 9); json.loads('[' * 10 ** 7)"
    ),
    "a constructor in place of the class": tried(
        "import jax\nfrom jax.sharding import Mesh\n"
        "Mesh.__new__ = lambda *a, **k: os._exit(0)"
    ),
}  # fmt: skip

BOMB = b"# coding: punycode\n# x-99999a" + b"a" * (1 << 19)

ENCODINGS: dict[str, bytes] = {
    "punycode of half a million letters": BOMB,
    "names of hosts": b"# coding: idna\n" + b"xn--" + b"a" * 500_000,
    "a codec that unpacks": b"# coding: bz2\nBZh9\n",
    "a codec of bytes": b"# coding: base64\nZGVm\n",
    "a codec that is undefined": b"# coding: undefined\ndef shard_map_psum(x): return 0\n",
    "escapes of Unicode": b"# coding: unicode_escape\ndef shard_map_psum(x): return 0\n",
    "raw escapes": b"# coding: raw_unicode_escape\ndef shard_map_psum(x): return '\\udcff'\n",
    "UTF-32": "def shard_map_psum(x): return x\n".encode("utf-32"),
    "a name with escapes": b"# coding: \x1b[2J\ndef shard_map_psum(x): return 0\n",
    "two encodings": b"# coding: latin-1\n# coding: utf-8\ndef shard_map_psum(x): return '\xff'\n",
    "separators of lines": "def shard_map_psum(x):\u2028    return 0\x0c\x0b\x85\n".encode(),
    "letters that look alike": "def shard_m\u0430p_psum(x): return 0\n".encode(),
    "text from right to left": "def shard_map_psum(x): return 1 / 0 # \u202e\u2066x\n".encode(),
    "a letter with a thousand marks": (
        "def shard_map_psum(x):\n    raise ValueError('z" + "\u0301" * 1000 + "')\n"
    ).encode(),
    "half a character in UTF-8": b"def shard_map_psum(x): return '\xed\xa0\x80'\n",
    "a character that is too long": b"def shard_map_psum(x): return '\xc0\x80'\n",
    "the end of a file of old": b"def shard_map_psum(x): return 0\n\x1a\x04",
}  # fmt: skip

SCREEN = {
    name: tried(f"print({text!r} * 3)")
    for name, text in {
        "a clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
        "a link": "\x1b]8;;file:///etc/passwd\x1b\\right\x1b]8;;\x1b\\",
        "a question to the terminal": "\x1b[6n\x1b[c\x1b]10;?\x07\x1bP+q544e\x1b\\",
        "another character set": "\x1b(0\x0e\x1b%G\x1b#8",
        "controls of eight bits": "\x9b2J\x9d0;x\x9c\x90q\x9c",
        "a window moved": "\x1b[3;0;0t\x1b[8;1;1t\x1b[?1049h\x1b[?25l",
        "invisible letters": "right\u200b\u2060\ufeff\U000e0041",
        "lines and pages": "\u2028\u2029\x0b\x0c\x85\x1c\x1d\x1e",
        "a page of its own": "<script>fetch('http://127.0.0.1')</script><img src=x onerror=1>",
        "a formula": '=HYPERLINK("http://x")\t@SUM(1)',
    }.items()
}
