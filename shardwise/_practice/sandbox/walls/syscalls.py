"""Linux system calls by name: their numbers, and a way to make them from Python.

Only x86_64 and aarch64 are listed; elsewhere `number` returns None and the walls that need it are
reported as missing.
"""

from __future__ import annotations

import ctypes
import os
import platform

_COMPUTING = """
read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; preadv 295 69;
pwritev 296 70; close 3 57; close_range 436 436; openat 257 56; open 2 -; fstat 5 80;
newfstatat 262 79; statx 332 291; stat 4 -; lstat 6 -; statfs 137 43; fstatfs 138 44; lseek 8 62;
mmap 9 222; mprotect 10 226; munmap 11 215; mremap 25 216; brk 12 214; madvise 28 233;
mincore 27 232; msync 26 227; membarrier 324 283; rt_sigaction 13 134; rt_sigprocmask 14 135;
rt_sigreturn 15 139; rt_sigtimedwait 128 137; rt_sigpending 127 136; rt_sigsuspend 130 133;
sigaltstack 131 132; access 21 -; faccessat 269 48; faccessat2 439 439; pipe 22 -; pipe2 293 59;
select 23 -; pselect6 270 72; poll 7 -; ppoll 271 73; epoll_create 213 -; epoll_create1 291 20;
epoll_ctl 233 21; epoll_wait 232 -; epoll_pwait 281 22; epoll_pwait2 441 441; eventfd 284 -;
eventfd2 290 19; timerfd_create 283 85; timerfd_settime 286 86; timerfd_gettime 287 87;
sched_yield 24 124; sched_getaffinity 204 123; sched_getparam 143 121; sched_getscheduler 145 120;
sched_get_priority_max 146 125; sched_get_priority_min 147 126; getpriority 140 141; dup 32 23;
dup2 33 -; dup3 292 24; flock 73 32; nanosleep 35 101; clock_nanosleep 230 115;
clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169; time 201 -; getpid 39 172;
getppid 110 173; gettid 186 178; getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177;
getresuid 118 148; getresgid 120 150; getgroups 115 158; getpgid 121 155; getpgrp 111 -;
getsid 124 156; uname 63 160; sysinfo 99 179; getcwd 79 17; chdir 80 49; fchdir 81 50;
getdents64 217 61; getdents 78 -; readlink 89 -; readlinkat 267 78; getrandom 318 278;
getrusage 98 165; times 100 153; getcpu 309 168; getrlimit 97 163; arch_prctl 158 -;
set_tid_address 218 96; set_robust_list 273 99; rseq 334 293; futex 202 98; futex_waitv 449 449;
exit 60 93; exit_group 231 94; restart_syscall 219 128; mkdir 83 -; mkdirat 258 34; unlink 87 -;
unlinkat 263 35; rmdir 84 -; rename 82 -; renameat 264 38; renameat2 316 276; ftruncate 77 46;
fallocate 285 47; fsync 74 82; fdatasync 75 83; fadvise64 221 223; umask 95 166;
copy_file_range 326 285; sendfile 40 71; wait4 61 260; waitid 247 95; alarm 37 -; setitimer 38 103;
getitimer 36 102; timer_create 222 107; timer_settime 223 110; timer_gettime 224 108;
timer_delete 226 111; timer_getoverrun 225 109; pause 34 -; get_mempolicy 239 236
"""
"""The system calls for computing: name, number on x86_64 and on aarch64 (- if missing)."""

_OTHERS = """
fcntl 72 25; clone 56 220; clone3 435 435; prlimit64 302 261; tgkill 234 131; ioctl 16 29;
prctl 157 167; mount 165 40; umount2 166 39; pivot_root 155 41; unshare 272 97;
mount_setattr 442 442; capset 126 91; landlock_create_ruleset 444 444; landlock_add_rule 445 445;
landlock_restrict_self 446 446
"""
"""The system calls that build the walls, or are allowed only with some arguments."""

_COLUMN = {"x86_64": 1, "aarch64": 2, "arm64": 2}.get(platform.machine())


def _numbers(table: str) -> dict[str, int]:
    rows = [cell.split() for cell in table.replace("\n", " ").split(";")]
    return {row[0]: int(row[_COLUMN]) for row in rows if _COLUMN and row[_COLUMN] != "-"}


COMPUTING = _numbers(_COMPUTING)
"""The system calls that computing needs, by name, with their numbers on this machine."""

_NUMBERS = {**COMPUTING, **_numbers(_OTHERS)}


def number(name: str) -> int | None:
    """Return the number of a system call on this machine; None where it has none."""
    return _NUMBERS.get(name)


def call(name: str, *args: object) -> int:
    """Make a system call; raise OSError if it fails or does not exist here."""
    which = number(name)
    if which is None:
        raise OSError(38, f"no system call {name} on {platform.machine()}")
    return check(_libc().syscall(ctypes.c_long(which), *args), name)


def prctl(option: int, *args: object) -> int:
    """Call prctl; raise OSError if it fails."""
    padded = [*args, 0, 0, 0, 0][:4]
    longs = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in padded]
    return check(_libc().prctl(ctypes.c_int(option), *longs), "prctl")


def check(returned: int, name: str) -> int:
    """Raise OSError for the -1 of a failed call; return anything else."""
    if returned == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return returned


def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library
