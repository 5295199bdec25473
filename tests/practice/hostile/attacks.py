"""Attacks by class. Each prints ESCAPED where it gets through; none solves the exercise.

Placeholders stand for things outside: @OUT@ a folder that may be written, @SECRET@ a file in it,
@SOL@ the exercise's solution, @EX@ the folder of exercises, @MATE@ a classmate's file, @JUDGE@ the
judge's pid, @PORT@ a port that listens on 127.0.0.1.
"""

from __future__ import annotations

import textwrap

TAIL = """

def shard_map_psum(x):
    attack(x)
    return x.sum() * 0
"""

SYSCALL = """
import ctypes, platform
MARK = "ESC" + "APED"
libc = ctypes.CDLL(None, use_errno=True)
NUMBER = {"x86_64": 0, "aarch64": 1}[platform.machine()]
def raw(numbers, *args):
    return libc.syscall(ctypes.c_long(numbers[NUMBER]), *args)
"""


def tried(code: str) -> str:
    """Return a solution that does something and then returns zero."""
    # The word itself stands nowhere in the source, which an error may quote.
    code = code.replace("'ESCAPED'", "MARK")
    body = textwrap.indent(textwrap.dedent(code).strip(), "    ")
    return f"import os, sys\n{SYSCALL}\ndef attack(x):\n{body}\n{TAIL}"


def all_of(**attacks: str) -> dict[str, str]:
    """Return solutions by name that do something and then return zero."""
    return {name.replace("_", " "): tried(code) for name, code in attacks.items()}


FILES = all_of(
    read_the_solution="print('ESCAPED', open('@SOL@').read())",
    solution_by_dir_fd="""
        d = os.open(os.path.dirname('@EX@'), os.O_RDONLY)
        f = os.open('exercises/01_shard_map_psum/solution.py', os.O_RDONLY, dir_fd=d)
        print('ESCAPED', os.read(f, 4000))""",
    solution_compiled="""
        import glob, marshal
        for f in glob.glob('@EX@/**/*.pyc', recursive=True):
            print('ESCAPED', marshal.loads(open(f, 'rb').read()[16:]))""",
    solution_by_import="""
        import importlib.util
        spec = importlib.util.spec_from_file_location('s', '@SOL@')
        m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m)
        print('ESCAPED', m.shard_map_psum)""",
    solution_by_runpy="import runpy; print('ESCAPED', runpy.run_path('@SOL@'))",
    solution_by_numpy="import numpy as np; print('ESCAPED', np.fromfile('@SOL@', 'u1').tobytes())",
    solution_by_pkgutil="""
        import pkgutil
        got = pkgutil.get_data('shardwise._practice', 'exercises/01_shard_map_psum/solution.py')
        print('ESCAPED', got)""",
    solution_by_resources="""
        import importlib.resources as r
        p = r.files('shardwise._practice') / 'exercises' / '01_shard_map_psum' / 'solution.py'
        print('ESCAPED', p.read_text())""",
    solution_by_linecache="""
        import linecache
        if linecache.getlines('@SOL@'): print('ESCAPED')""",
    solution_by_readline="""
        import readline
        readline.read_history_file('@SOL@'); print('ESCAPED', readline.get_history_item(1))""",
    solution_by_mmap="""
        import mmap
        f = os.open('@SOL@', os.O_RDONLY); print('ESCAPED', mmap.mmap(f, 0, prot=1)[:])""",
    solution_by_c="""
        f = libc.open(b'@SOL@', 0); b = ctypes.create_string_buffer(999)
        if f >= 0 and libc.read(f, b, 999) > 0: print('ESCAPED', b.value)""",
    solution_by_patched_realpath="""
        os.path.realpath = lambda p, **k: '/dev/null'
        print('ESCAPED', open('@SOL@').read())""",
    solution_in_any_file="""
        for folder, _, files in os.walk('/'):
            for f in files:
                if f == 'solution.py' or f.startswith('solution.cpython'):
                    print('ESCAPED', folder, open(os.path.join(folder, f), 'rb').read(50))""",
    solution_in_memory="""
        import gc
        mark = 'psum(local' + ', axis_name="data")'
        for o in gc.get_objects():
            if isinstance(o, dict):
                for v in list(o.values()):
                    known = isinstance(v, str) and mark in v
                    if known and 'mark =' not in v: print('ESCAPED', v)""",
    expected_answers="""
        import importlib.util
        s = importlib.util.spec_from_file_location('t', os.path.dirname('@SOL@') + '/task.py')
        m = importlib.util.module_from_spec(s); s.loader.exec_module(m); print('ESCAPED', m)""",
    a_classmate="print('ESCAPED', open('@MATE@').read())",
    a_classmate_by_cwd_of_the_judge="print('ESCAPED', os.listdir('/proc/@JUDGE@/cwd'))",
    root_of_the_first_process="print('ESCAPED', os.listdir('/proc/1/root'))",
    root_of_the_parent="print('ESCAPED', open(f'/proc/{os.getppid()}/root@SECRET@').read())",
    files_of_the_parent="print('ESCAPED', os.listdir(f'/proc/{os.getppid()}/fd'))",
    a_secret="print('ESCAPED', open('@SECRET@').read())",
    a_secret_by_dots="print('ESCAPED', open('../' * 20 + '@SECRET@').read())",
    a_secret_by_a_link="os.symlink('@SECRET@', 'l'); print('ESCAPED', open('l').read())",
    a_secret_by_a_hard_link="os.link('@SECRET@', 'l'); print('ESCAPED', open('l').read())",
    a_secret_by_a_handle="""
        h = ctypes.create_string_buffer(200); m = ctypes.c_int()
        if raw((304, 265), -100, h, 0) >= 0: print('ESCAPED')""",
    passwords="print('ESCAPED', open('/etc/shadow').read())",
    the_home_folder="""
        import pwd
        print('ESCAPED', os.listdir(pwd.getpwuid(os.getuid()).pw_dir))""",
    environment="""
        if any('CANARY' in k + v for k, v in os.environ.items()): print('ESCAPED')
        b = open('/proc/self/environ', 'rb').read()
        if b'CANARY' in b: print('ESCAPED')""",
    environment_of_the_parent="""
        if b'CANARY' in open(f'/proc/{os.getppid()}/environ', 'rb').read(): print('ESCAPED')""",
    disks="""
        for name in ('mem', 'kmem', 'sda', 'vda', 'nvme0n1', 'kmsg'):
            try: print('ESCAPED', os.open('/dev/' + name, os.O_RDONLY))
            except OSError: pass
        os.mknod('d', 0o60600, os.makedev(254, 0)); print('ESCAPED')""",
)

WRITES = all_of(
    a_file_outside="open('@OUT@/written', 'w').write('x')",
    a_file_by_rename="open('m', 'w').write('x'); os.rename('m', '@OUT@/renamed')",
    a_file_by_dir_fd="""
        d = os.open('@OUT@', os.O_RDONLY)
        os.close(os.open('written', os.O_CREAT | os.O_WRONLY, dir_fd=d))""",
    a_file_by_sqlite="""
        import sqlite3
        c = sqlite3.connect('@OUT@/db'); c.execute('create table t(x)'); c.commit()""",
    a_file_by_readline="import readline; readline.write_history_file('@OUT@/history')",
    a_file_by_numpy="import numpy as np; np.save('@OUT@/array.npy', np.ones(3))",
    a_file_by_c="libc.creat(b'@OUT@/created', 0o600)",
    a_link_outside="os.symlink('/etc/passwd', '@OUT@/link')",
    a_pipe_outside="os.mkfifo('@OUT@/fifo')",
    a_folder_outside="os.makedirs('@OUT@/a/b')",
    a_secret_removed="os.remove('@SECRET@')",
    a_secret_emptied="os.truncate('@SECRET@', 0)",
    a_secret_appended="open('@SECRET@', 'a').write('x')",
    a_secret_made_unreadable="os.chmod('@SECRET@', 0)",
    a_secret_given_away="os.chown('@SECRET@', 1, 1)",
    a_secret_dated_back="os.utime('@SECRET@', (0, 0))",
    a_secret_labelled="os.setxattr('@SECRET@', 'user.x', b'1')",
    everything_removed="import shutil; shutil.rmtree('@OUT@')",
    a_classmate_overwritten="open('@MATE@', 'w').write('x')",
    a_package_poisoned="""
        import flax
        open(os.path.join(os.path.dirname(flax.__file__), 'poison.py'), 'w').write('x')
        print('ESCAPED')""",
    the_judge_poisoned="""
        from shardwise._practice import compare
        open(compare.__file__, 'a').write('same = lambda *a: True'); print('ESCAPED')""",
    a_cache_poisoned="""
        from shardwise._practice import compare
        p = os.path.join(os.path.dirname(compare.__file__), '__pycache__')
        open(os.path.join(p, 'poison.pyc'), 'w').write('x'); print('ESCAPED')""",
    a_start_file="""
        import site
        for p in site.getsitepackages():
            open(os.path.join(p, 'poison.pth'), 'w').write('import os'); print('ESCAPED')""",
    a_kernel_setting="""
        open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh'); print('ESCAPED')""",
    a_mount="""
        if libc.mount(b'none', b'.', b'tmpfs', 0, None) == 0: print('ESCAPED')""",
    a_mount_made_writable="""
        if libc.mount(None, b'/', None, 32 | 4096, None) == 0: print('ESCAPED')""",
    another_root="os.chroot('.'); print('ESCAPED')",
    other_namespaces="""
        if libc.unshare(0x10000000) == 0: print('ESCAPED')""",
    the_disk_filled="""
        done = 0
        try:
            for i in range(300):
                open(f'f{i}', 'wb').write(bytes(1 << 20)); done += 1
        finally:
            if done > 64: print('ESCAPED', done)""",
    the_disk_filled_with_names="""
        done = 0
        try:
            for i in range(200_000):
                os.mkdir(f'd{i}'); done += 1
        finally:
            if done > 100_000: print('ESCAPED', done)""",
    one_long_file="f = open('long', 'wb'); f.truncate(1 << 40); print('ESCAPED')",
    a_pipe_in_place_of_what_was_printed="os.mkfifo('f'); os.rename('f', '../printed')",
    a_link_in_place_of_its_folder="""
        p = os.getcwd(); os.chdir('..'); os.rename(p, p + 'x'); os.symlink('@OUT@', p)""",
)

PROCESSES = all_of(
    fork="pid = os.fork(); print('ESCAPED'); os._exit(0) if not pid else None",
    a_bomb_of_forks="while True: os.fork()",
    a_daemon="""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                import time
                time.sleep(600)
            os._exit(0)
        print('ESCAPED')""",
    a_command="import subprocess; subprocess.run(['true']); print('ESCAPED')",
    the_shell="print('ESCAPED') if os.system('true') == 0 else None",
    popen="""
        if os.popen('echo hello').read(): print('ESCAPED')""",
    spawn="os.posix_spawn('/bin/true', ['true'], {}); print('ESCAPED')",
    a_private_fork_exec="""
        import _posixsubprocess
        r, w = os.pipe()
        a = [[b'/bin/sh'], [b'/bin/sh'], True, (w,), None, None, -1, -1, -1, -1, -1, -1, r, w]
        a += [False, False, -1, None, None, None, -1, None, False]
        pid = _posixsubprocess.fork_exec(*a[:23])
        print('ESCAPED', pid)""",
    multiprocessing_spawn="""
        import multiprocessing as mp
        p = mp.get_context('spawn').Process(target=os.getpid); p.start(); print('ESCAPED')""",
    multiprocessing_server="""
        import multiprocessing as mp
        p = mp.get_context('forkserver').Process(target=os.getpid); p.start(); print('ESCAPED')""",
    a_pool="""
        from concurrent.futures import ProcessPoolExecutor
        with ProcessPoolExecutor(2) as p: print('ESCAPED', list(p.map(abs, [1])))""",
    a_terminal="import pty; pty.fork(); print('ESCAPED')",
    fork_by_number="""
        pid = raw((57, 220), 17, 0, 0, 0, 0)
        if pid > 0: print('ESCAPED')
        if pid == 0: os._exit(0)""",
    clone3_by_number="""
        args = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
        pid = raw((435, 435), ctypes.byref(args), 88)
        if pid > 0: print('ESCAPED')
        if pid == 0: os._exit(0)""",
    vfork="""
        pid = libc.fork()
        if pid > 0: print('ESCAPED')
        if pid == 0: os._exit(0)""",
    exec="os.execv('/bin/echo', ['echo', 'ESCAPED'])",
    python_anew="os.execv(sys.executable, [sys.executable, '-c', 'print(\"ESCAPED\")'])",
    exec_of_memory="""
        f = os.memfd_create('x'); os.write(f, open('/bin/echo', 'rb').read())
        os.execve(f, ['echo', 'ESCAPED'], {})""",
    kill_the_parent="os.kill(os.getppid(), 9); print('ESCAPED')",
    kill_the_judge="os.kill(@JUDGE@, 9); print('ESCAPED')",
    kill_everybody="os.kill(-1, 9); print('ESCAPED')",
    kill_the_group="os.killpg(os.getpgid(os.getppid()), 9); print('ESCAPED')",
    kill_by_pidfd="""
        import signal
        signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9); print('ESCAPED')""",
    kill_by_number="""
        if raw((62, 129), os.getppid(), 9) == 0: print('ESCAPED')
        if raw((234, 131), os.getppid(), os.getppid(), 9) == 0: print('ESCAPED')
        if raw((200, 130), os.getppid(), 9) == 0: print('ESCAPED')
        if raw((129, 138), os.getppid(), 9, ctypes.create_string_buffer(128)) == 0:
            print('ESCAPED')""",
    kill_by_owning_a_pipe="""
        import fcntl
        r, w = os.pipe()
        fcntl.fcntl(r, 10, 9)
        fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())
        fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
        os.write(w, b'x'); print('ESCAPED')""",
    limits_of_the_parent="""
        import resource
        resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3)); print('ESCAPED')""",
    limits_lifted="""
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, (-1, -1)); print('ESCAPED')""",
    processors_of_the_parent="os.sched_setaffinity(os.getppid(), {0}); print('ESCAPED')",
    priority_of_the_parent="os.setpriority(0, os.getppid(), 19); print('ESCAPED')",
    trace_the_parent="""
        if libc.ptrace(16, os.getppid(), 0, 0) == 0: print('ESCAPED')""",
    memory_of_the_parent="print('ESCAPED', os.open(f'/proc/{os.getppid()}/mem', os.O_RDWR))",
    memory_of_the_parent_by_number="""
        b = ctypes.create_string_buffer(8)
        v = (ctypes.c_uint64 * 2)(ctypes.addressof(b), 8)
        for n in ((310, 270), (311, 271)):
            got = raw(n, os.getppid(), ctypes.byref(v), 1, ctypes.byref(v), 1, 0)
            if got > 0: print('ESCAPED')""",
    files_of_the_parent_by_number="""
        f = raw((434, 434), os.getppid(), 0)
        if f >= 0 and raw((438, 438), f, 3, 0) >= 0: print('ESCAPED')""",
    another_user="os.setuid(0); os.setgid(12345); print('ESCAPED')",
    shared_memory="""
        from multiprocessing.shared_memory import SharedMemory
        SharedMemory('judge', True, 4096); print('ESCAPED')""",
    system_v_memory="""
        if libc.shmget(1, 4096, 0o1600) >= 0: print('ESCAPED')""",
    a_kernel_program="""
        if raw((321, 280), 0, ctypes.create_string_buffer(64), 64) >= 0: print('ESCAPED')""",
    keys_of_the_kernel="""
        if raw((248, 217), b'user', b'k', b'v', 1, -3) >= 0: print('ESCAPED')""",
    a_bomb_of_threads="""
        import threading, time
        threading.stack_size(1 << 15)
        while True: threading.Thread(target=time.sleep, args=(999,), daemon=True).start()""",
)

NETWORK = all_of(
    tcp="import socket; socket.create_connection(('127.0.0.1', @PORT@), 3); print('ESCAPED')",
    udp="""
        import socket
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.sendto(b'x', ('127.0.0.1', @PORT@)); print('ESCAPED')""",
    udp_by_sendmsg="""
        import socket
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.sendmsg([b'x'], [], 0, ('127.0.0.1', @PORT@)); print('ESCAPED')""",
    ipv6="import socket; socket.create_connection(('::1', @PORT@), 3); print('ESCAPED')",
    a_server="import socket; socket.create_server(('0.0.0.0', 0)); print('ESCAPED')",
    a_name="import socket; print('ESCAPED', socket.getaddrinfo('example.org', 80))",
    a_page="""
        import urllib.request
        print('ESCAPED', urllib.request.urlopen('http://127.0.0.1:@PORT@', timeout=3))""",
    a_unix_socket="""
        import socket
        s = socket.socket(socket.AF_UNIX); s.connect('@OUT@/socket'); print('ESCAPED')""",
    an_abstract_socket="""
        import socket
        s = socket.socket(socket.AF_UNIX); s.bind('\\0judge'); print('ESCAPED')""",
    raw_packets="""
        import socket
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('ESCAPED')""",
    netlink="""
        import socket
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0)); print('ESCAPED')""",
    vsock="import socket; socket.socket(40, socket.SOCK_STREAM); print('ESCAPED')",
    a_ring="""
        if raw((425, 425), 8, ctypes.create_string_buffer(200)) >= 0: print('ESCAPED')""",
    asyncio="""
        import asyncio
        asyncio.run(asyncio.open_connection('127.0.0.1', @PORT@)); print('ESCAPED')""",
    a_cluster="""
        import jax
        jax.distributed.initialize('127.0.0.1:@PORT@', 2, 1, initialization_timeout=3)
        print('ESCAPED')""",
    from_another_thread="""
        import threading, socket
        def work():
            socket.create_connection(('127.0.0.1', @PORT@), 3); print('ESCAPED')
        t = threading.Thread(target=work); t.start(); t.join()""",
    from_a_callback="""
        import jax, jax.numpy as jnp, numpy as np, socket
        def work(v):
            socket.create_connection(('127.0.0.1', @PORT@), 3); print('ESCAPED'); return v
        jax.jit(lambda v: jax.pure_callback(work, v, v))(jnp.ones(())).block_until_ready()""",
)

LIMITS = all_of(
    an_endless_loop="while True: pass",
    an_endless_sleep="import time; time.sleep(10_000)",
    a_stop="import signal; signal.raise_signal(signal.SIGSTOP)",
    a_pause="import signal; signal.pause()",
    a_lock="import threading; l = threading.Lock(); l.acquire(); l.acquire()",
    a_deaf_loop="""
        import signal
        for s in range(1, 65):
            try: signal.signal(s, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: pass""",
    a_loop_that_catches="""
        while True:
            try:
                while True: pass
            except BaseException: pass""",
    a_power="print(len(str(10 ** (10 ** 9))))",
    a_pattern="import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    a_loop_of_the_compiler="""
        import jax
        jax.lax.while_loop(lambda v: True, lambda v: v + 1, 0).block_until_ready()""",
    a_list_without_end="big = []\nwhile True: big.append(bytearray(1 << 26))",
    an_array_that_is_too_large="import numpy as np; np.ones(1 << 34).sum()",
    a_jax_array_that_is_too_large="import jax.numpy as jnp; jnp.ones(1 << 34).block_until_ready()",
    a_text_that_is_too_large="s = 'x' * (1 << 36)",
    a_map_that_is_too_large="""
        import mmap
        m = mmap.mmap(-1, 1 << 36); m[:] = b'x' * (1 << 36)""",
    locked_memory="""
        b = ctypes.create_string_buffer(1 << 28)
        if libc.mlock(b, 1 << 28) == 0: print('ESCAPED')""",
    a_flood="while True: print('x' * 10_000)",
    a_flood_by_number="while True: os.write(2, b'x' * 65536)",
    many_files="files = [os.pipe() for _ in range(10_000)]; print('ESCAPED')",
    too_deep="f = lambda: f()\nf()",
    a_deep_stack="""
        sys.setrecursionlimit(1 << 30)
        f = lambda: f()
        f()""",
    a_crash="ctypes.string_at(0)",
    an_abort="os.abort()",
    an_exit="os._exit(0)",
    an_end="sys.exit(0)",
)
