"""The beginning of a program that finds Python as it is on Windows, as far as that can be simulated on Linux.

There are no POSIX modules, functions and signals; folders cannot be opened, and open files cannot be renamed. Python's
own modules and dependencies are loaded before, as those of Linux.
"""

import sys

LIKE_WINDOWS = """
import asyncio, importlib.metadata, logging, mmap, os, runpy, signal, socket, subprocess, sys, tempfile, uuid
import click, google.protobuf, grpc, grpc.aio, numpy, rich.live, rich.table, safetensors.numpy
from grpc_health.v1 import health_pb2, health_pb2_grpc

POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in POSIX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
names = "fork forkpty register_at_fork sysconf getuid geteuid getpgrp getpgid killpg setsid tcgetpgrp tcsetpgrp waitid "
names += "sched_getaffinity fdatasync posix_fallocate writev pwritev preadv O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_DIRECTORY"
for name in names.split():
    delattr(os, name)
for name in "SIGKILL SIGHUP SIGALRM SIGUSR1 SIGCHLD SIGTTOU SIGTTIN pthread_sigmask pthread_kill".split():
    delattr(signal, name)
del socket.AF_UNIX, mmap.MAP_SHARED

open_file, replace_file = os.open, os.replace

def open_no_folder(path, *arguments, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return open_file(path, *arguments, **options)

def replace_no_open_file(source, target):
    descriptors = [os.path.join("/proc/self/fd", one) for one in os.listdir("/proc/self/fd")]
    if os.path.realpath(source) in map(os.path.realpath, descriptors):
        raise PermissionError(32, "The process cannot access the file because it is being used by another process")
    replace_file(source, target)

os.open, os.replace = open_no_folder, replace_no_open_file
sys.platform = "win32"
"""


def like_windows(program: str) -> list[str]:
    """The command that runs a program there."""
    return [sys.executable, "-c", LIKE_WINDOWS + program]
