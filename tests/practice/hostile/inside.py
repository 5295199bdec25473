"""Attacks from inside: memory, the kernel's odd calls, Python's own hooks, forged programs.

They are written as those of `attacks` are, with the same placeholders.
"""

from __future__ import annotations

from .attacks import all_of, tried
from .forging import FORGE, HONEST_SUM, forged

MEMORY = all_of(
    source_of_a_classmate_on_the_heap="""
        mark = bytes.fromhex('617869735f6e616d653d226461746122')
        before = bytes.fromhex('7065725f736861726428')
        libc.sbrk.restype = ctypes.c_void_p
        libc.mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
        flag = ctypes.create_string_buffer(1)
        page, last = libc.sbrk(0) & ~0xfff, b''
        while libc.mincore(page := page - 4096, 4096, flag) == 0:
            data = ctypes.string_at(page, 4096) + last[:400]
            at = data.find(mark)
            while at >= 0:
                if before in data[max(0, at - 300):at]: print('ESCAPED', data[at - 300:at])
                at = data.find(mark, at + 1)
            last = data[:4096]""",
    anonymous_file="os.memfd_create('x'); print('ESCAPED')",
    secret_memory="if raw((447, 447), 0) >= 0: print('ESCAPED')",
    faults_in_user_space="""
        if raw((323, 282), 0) >= 0 or raw((323, 282), 1) >= 0: print('ESCAPED')""",
    posix_shared_memory="""
        if libc.shm_open(b'/judge', 66, 0o600) >= 0: print('ESCAPED')""",
    message_queue="""
        if libc.mq_open(b'/judge', 66, 0o600, None) >= 0: print('ESCAPED')""",
    semaphores="""
        if libc.semget(1, 1, 0o1600) >= 0: print('ESCAPED')""",
    keyring="""
        if raw((250, 219), 0, -3, 1) >= 0: print('ESCAPED')""",
    ring_by_number="""
        p = ctypes.create_string_buffer(120)
        for n in ((425, 425), (426, 426), (427, 427)):
            if raw(n, 4, p, 0, 0, 0, 0) >= 0: print('ESCAPED')""",
    performance_counters="""
        if raw((298, 241), ctypes.create_string_buffer(128), 0, -1, -1, 0) >= 0:
            print('ESCAPED')""",
    tracer_of_itself="if libc.ptrace(0, 0, 0, 0) == 0: print('ESCAPED')",
    seize_the_parent="if libc.ptrace(0x4206, os.getppid(), 0, 0) == 0: print('ESCAPED')",
    compare_with_the_parent="""
        if raw((312, 272), os.getppid(), os.getpid(), 0, 0, 0) >= 0: print('ESCAPED')""",
    core_dumps_allowed="""
        if libc.prctl(4, 1, 0, 0, 0) == 0: print('ESCAPED')""",
    rights_regained="""
        h = (ctypes.c_uint32 * 2)(0x20080522, 0); d = (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)
        if libc.capset(ctypes.byref(h), ctypes.byref(d)) == 0: print('ESCAPED')""",
    another_filter="""
        if libc.prctl(22, 1, 0, 0, 0) == 0: print('ESCAPED')""",
    calls_of_32_bits="""
        import mmap
        if platform.machine() == 'x86_64':
            m = mmap.mmap(-1, 4096, prot=7)
            m[:8] = b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3'  # getpid by int 0x80
            f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
            if f() > 0: print('ESCAPED')
        else:
            raise OSError('not here')""",
    calls_of_another_table="""
        if platform.machine() == 'x86_64' and raw((0x40000029, 0), 2, 1, 0) >= 0:
            print('ESCAPED')""",
)

PYTHON = {
    **all_of(
        timer_that_interrupts="""
            import signal
            def again(*_): raise KeyboardInterrupt
            signal.signal(signal.SIGALRM, again); signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
            while True: pass""",
        signals_to_its_group="os.killpg(0, 15); os.kill(0, 15); print('ESCAPED')",
        its_own_end="os.kill(os.getpid(), 9)",
        deep_folders="""
            for i in range(2000):
                os.mkdir('d'); os.chdir('d')""",
        folders_that_cannot_be_listed="""
            os.mkdir('d', 0o300)
            for i in range(2000): os.mkdir(f'd/{i}', 0o300)""",
        names_that_deceive="""
            for n in ('-rf', 'a\\nb', '\\x1b[2J', ' ', '*', b'\\xff\\xfe', 'x' * 255):
                try: open(n, 'w').close()
                except OSError: pass
            print(os.listdir('.'))""",
        files_as_standard_streams="""
            for fd in (0, 1, 2): os.close(fd)
            os.open('f', os.O_CREAT | os.O_RDWR); os.open('f', os.O_RDWR); print('x' * 100)""",
        pipe_without_end="""
            import fcntl
            fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)
            while True:
                try: os.write(1, b'\\x1b[2J' * 4096)
                except BlockingIOError: pass""",
        thread_that_prints_at_the_end="""
            import threading, atexit, time
            atexit.register(lambda: print('x' * 100))
            def again():
                while True: print('y' * 1000); time.sleep(1e-4)
            threading.Thread(target=again).start()""",
        import_that_is_replaced="""
            import builtins
            real = builtins.__import__
            builtins.__import__ = lambda n, *a, **k: 1 / 0 if n == 'json' else real(n, *a, **k)
            import json""",
        every_call_traced="""
            secret = bytes.fromhex('43414e4152592d376331').decode()
            def spy(frame, event, arg):
                for v in list(frame.f_locals.values()):
                    if v is not secret and isinstance(v, str) and secret in v: print('ESCAPED')
                return spy
            sys.settrace(spy); import threading; threading.settrace(spy); sys.setprofile(spy)""",
        frames_above="""
            import gc
            f = sys._getframe()
            while f:
                if 'expected' in f.f_locals: print('ESCAPED')
                f = f.f_back
            names = ('ExerciseCase', 'Exercise', 'Judge')
            for o in gc.get_objects():
                if type(o).__name__ in names: print('ESCAPED', o)""",
        module_that_is_no_module="sys.modules.clear(); sys.path.clear()",
        hook_for_errors="""
            sys.excepthook = lambda *a: os._exit(0)
            class E(BaseException):
                def __str__(s): return '\\x1b]0;x\\x07' * 1000
                __repr__ = __str__
            raise E from E()""",
        group_of_errors="""
            e = ValueError('x')
            for _ in range(5000): e = ExceptionGroup('\\x1b[2J', [e])
            raise e""",
        chain_of_errors="""
            def go(n):
                try: raise ValueError('x' * 1000)
                except ValueError:
                    if n: go(n - 1)
                    raise
            go(900)""",
        collected_late="""
            class D:
                def __del__(s): sys.stdout.write('\\x1b[2J'); raise ValueError
            a = D(); a.me = a""",
    ),
    "an exit as it is imported": "import sys\nsys.exit(0)\n",
    "an end as it is imported": "import os\nos._exit(0)\n",
    "an endless import": "while True: pass\n",
    "a function that is a class": "class shard_map_psum:\n    def __init__(self, x): pass\n",
    "a generator": "def shard_map_psum(x):\n    while True: yield x\n",
    "a coroutine": "async def shard_map_psum(x):\n    return x\n",
    "a module that is a trap": (
        "import sys, types\nclass M(types.ModuleType):\n"
        "    def __getattribute__(s, n): raise SystemExit\n"
        "sys.modules[__name__].__class__ = M\ndef shard_map_psum(x): return 0\n"
    ),
    "a million lines": "x = 0\n" * 170_000 + "def shard_map_psum(x): return 0\n",
    "a name of many characters": f"def shard_map_psum(x):\n    return {'y' * 500_000}\n",
    "characters of Asia": "def shard_map_psum(x):\n    raise ValueError('和' * 5000 + '\\ud800')\n",
    "an old encoding": b"# coding: latin-1\ndef shard_map_psum(x): return '\xe9\x9b'\n",
    "two marks": b"\xef\xbb\xbf\xef\xbb\xbfdef shard_map_psum(x): return 0\n",
    "returns of carriages": b"def shard_map_psum(x):\r    return 0\r",
    "an answer without numbers": tried("pass").replace("x.sum() * 0", "float('nan')"),
    "an answer beyond numbers": tried("pass").replace("x.sum() * 0", "float('inf')"),
    "numbers patched": (
        "import numpy as np, jax\nnp.asarray = lambda *a, **k: 1 / 0\n"
        "np.ascontiguousarray = lambda a: np.float32(1)\n"
        "jax.block_until_ready = lambda v: [v]\ndef shard_map_psum(x): return 7.0\n"
    ),
    "a sum that serializes as another": (
        "import json\nfrom shardwise._practice.sandbox import wire\nreal = wire.pack\n"
        "wire.pack = lambda v: real(float(sum(range(10))))\ndef shard_map_psum(x): return 7.0\n"
    ),
}

LOOKED = (
    "if jobs[0]['kind'] == 'look':\n"
    "    where = {'line': 1}\n"
    "    held = {'devices': [{'data': 0}], 'values': 1.0}\n"
    "    step = {'kind': 'value', 'where': where, 'name': 'v', 'operation': 'o',\n"
    "            'differs_over': ['data'], 'backward': False, 'held': [held]}\n"
    "    seen = {'mesh': {'data': 2}, 'steps': [step]}\n"
    "    found = [{'certain': True, 'where': where}]\n"
    "    @CHANGE@\n"
    "    send(json.dumps({'runs': [{'facts': facts(), 'findings': found, 'inspection': seen}]}))\n"
    "runs(value=val(np.float32(3)))"
)

SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
def sharded(f, out):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return jax.shard_map(f, mesh=mesh, in_specs=P("data"), out_specs=out)
def shard_map_psum(x):
"""
PATCHED = (
    "from shardwise._practice.sandbox import hooks, program\n"
    "hooks.Observations.facts = lambda s: facts()"
)

PROGRAMS = {
    **{
        f"a look with {name}": forged(LOOKED.replace("@CHANGE@", change))
        for name, change in (
            ("no devices", "held['devices'] = []"),
            ("no values", "del held['values']"),
            ("values that are deep", "held['values'] = [[[[[[[[[[1]]]]]]]]]]"),
            ("values that are no numbers", "held['values'] = {'a': 1}"),
            ("values without end", "held['values'] = [float('inf'), float('nan'), 10 ** 30]"),
            ("escapes", "step['name'] = step['operation'] = '\\x1b[2J'; held['values'] = '\\x9b'"),
            ("a step that is text", "step['held'] = ['values']"),
            ("a line that is far", "where['line'] = 10 ** 6"),
            ("a mesh of nothing", "seen['mesh'] = {}; held['devices'] = [{}]"),
            ("a type that is a list", "seen['steps'] = [[]]; found.append([])"),
            ("a key twice", 'send(\'{"runs": [], "runs": [{"facts": 1, "facts": {}}]}\')'),
        )
    },
    "a type of an array that is a list": forged(
        'runs(value={"array": "", "dtype": [], "shape": []})'
    ),
    "NaN where a number belongs": forged(
        'f = facts(); f["vmaps"] = float("nan"); f["shard_maps"][0]["rows"] = float("inf")\n'
        "runs(facts=f)"
    ),
    "collectives whose result is not used": (
        SHARDED + "    sharded(lambda y: jax.lax.psum(y.sum(), 'data'), P())(x)\n"
        "    return x.sum()\n"
    ),
    "scopes named after collectives": (
        FORGE + PATCHED + SHARDED + "    with jax.named_scope('stablehlo.all_reduce'):\n"
        "        zeros = sharded(lambda y: y * 0, P('data'))(x)\n"
        "    return x.sum() + zeros.sum()\n"
    ),
    "a program that calls back": (
        FORGE + PATCHED + "\nimport jax, jax.export\nreal = jax.export.export\n"
        "any_call = lambda n: jax.export.DisabledSafetyCheck.custom_call(n)\n"
        "names = ['xla_ffi_python_cpu_callback', 'xla_python_cpu_callback',\n"
        "         'xla_ffi_partitioned_python_cpu_callback']\n"
        "jax.export.export = lambda f, **k: real(f, disabled_checks=[*map(any_call, names)], **k)\n"
        "def shard_map_psum(x):\n"
        "    total = jax.ShapeDtypeStruct((), x.dtype)\n"
        "    return jax.pure_callback(lambda v: np.float32(v.sum()), total, x)\n"
    ),
    "another program than its own": (
        FORGE + PATCHED + "\nimport jax\nreal = program.export\n"
        "program.export = lambda f, job: real(lambda v: v.sum(), {**job, 'pass_mesh': False})\n"
        + HONEST_SUM
    ),
    "a program that is no program": (
        FORGE
        + PATCHED
        + "\nprogram.export = lambda f, job: {'module': 'AAAA', 'form': {'leaf': 0},"
        " 'outs': [{'shape': [], 'dtype': 'float32'}]}\n" + HONEST_SUM
    ),
    "a program of a huge result": (
        FORGE
        + PATCHED
        + "\nprogram.export = lambda f, job: {'module': 'AAAA', 'form': {'leaf': 0},"
        " 'outs': [{'shape': [1 << 40], 'dtype': 'float32'}]}\n" + HONEST_SUM
    ),
    "a program of a form without leaves": (
        FORGE + PATCHED + "\nreal = program.export\n"
        "program.export = lambda f, job: {**real(f, job), 'form': {'leaf': 4000}}\n" + HONEST_SUM
    ),
}
