"""The system calls that a sandboxed program may make, as a filter for the kernel. Compiled by libseccomp.

An allow-list: what is not named fails with EPERM, and `clone3` with ENOSYS, upon which libraries fall back to `clone`, whose
flags can be looked at. Of sockets only those of this machine's own families remain; without a network they reach nothing. The
names are those of Docker's default profile that need no capability, less what only administrators and debuggers need.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
from functools import cache

from trivium.errors import Unsupported

NAMES = """
accept accept4 access alarm arch_prctl bind brk capget capset chdir chmod chown clock_getres clock_gettime clock_nanosleep
close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2
epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat
fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fstat fstatfs fsync ftruncate futex futex_waitv
futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer
getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname
getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl ioprio_get
kill lchown lgetxattr link linkat listen listxattr llistxattr lseek lstat madvise membarrier memfd_create mincore mkdir
mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap nanosleep newfstatat open
openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 poll ppoll prctl pread64 preadv preadv2 prlimit64 pselect6
pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg rename renameat renameat2
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_setaffinity sched_yield select semctl semget semop semtimedop sendfile sendmmsg
sendmsg sendto set_robust_list set_thread_area set_tid_address setgid setgroups setitimer setpgid setpriority setregid
setresgid setresuid setreuid setrlimit setsid setsockopt setuid shmat shmctl shmdt shmget shutdown sigaltstack signalfd
signalfd4 socketpair splice stat statfs statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time
timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times
tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
""".split()

FAMILIES = (1, 2, 10)
"""Of sockets: UNIX, INET, INET6. VSOCK is not covered by a network namespace, and the others ask the kernel for more."""

_NEW_NAMESPACES = 0x7E020000
"""The flags of `clone` that make a namespace of any kind, that of cgroups and of users among them."""
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EQ, _MASKED = 4, 7
_BAD_ARCHITECTURE = 2


class _Comparison(ctypes.Structure):
    """libseccomp's scmp_arg_cmp."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


@cache
def program() -> bytes:
    """The filter, in the form that bubblewrap and prctl take. Raises Unsupported without libseccomp."""
    library = _library()
    context = library.seccomp_init(_error(errno.EPERM))
    try:
        _check(library.seccomp_attr_set(context, _BAD_ARCHITECTURE, _KILL))  # 32-bit calls by int 0x80
        for name in NAMES:
            _allow(library, context, name)
        for family in FAMILIES:
            _allow(library, context, "socket", _Comparison(0, _EQ, family, 0))
        _allow(library, context, "clone", _Comparison(0, _MASKED, _NEW_NAMESPACES, 0))
        number = library.seccomp_syscall_resolve_name(b"clone3")
        _check(library.seccomp_rule_add_array(context, _error(errno.ENOSYS), number, 0, None))
        return _exported(library, context)
    finally:
        library.seccomp_release(context)


def _library() -> ctypes.CDLL:
    name = ctypes.util.find_library("seccomp")
    if name is None:
        raise Unsupported("a sandbox of namespaces needs libseccomp: apt-get install libseccomp2")
    library = ctypes.CDLL(name)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison),
    ]  # fmt: skip
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def _allow(library: ctypes.CDLL, context: int, name: str, comparison: _Comparison | None = None) -> None:
    """Allow a call, where its argument compares so. A call that this machine's libseccomp does not know stays refused."""
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:
        array = ctypes.pointer(comparison) if comparison else None
        _check(library.seccomp_rule_add_array(context, _ALLOW, number, 1 if comparison else 0, array))


def _error(number: int) -> int:
    return 0x00050000 | number


def _check(status: int) -> None:
    if status < 0:
        raise Unsupported(f"libseccomp refused the filter: {os.strerror(-status)}")


def _exported(library: ctypes.CDLL, context: int) -> bytes:
    descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    try:
        _check(library.seccomp_export_bpf(context, descriptor))
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
