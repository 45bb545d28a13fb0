"""The Python that starts at once (see warm.py): a script that has a fork of the server do its work, and ends as it ends.

What it cannot pass on goes to a fresh Python: options that it does not know, settings that an interpreter reads when it
starts, and programs that import nothing heavy. It must itself start fast, so it imports little.
"""

# ruff: noqa: E402
import os
import sys

FRESH = sys.executable
HERE = os.path.dirname(os.path.abspath(__file__))
SETTLED = ("PYTHONDEVMODE", "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONWARNINGS")

words, flags = sys.argv[1:], []
while words and words[0] in ("-P", "-u"):
    flags.append(words.pop(0))


def heavy() -> bool:
    """Whether the words are a module, or code that imports what takes long."""
    if len(words) > 1 and words[0] in ("-m", "-c"):
        text = words[1] if words[0] == "-c" else "torch"
    elif words and not words[0].startswith("-"):
        try:
            with open(words[0], encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError):
            return False
    else:
        return False
    return "ablationlab" in text or "torch" in text


test_process = words == ["-c", "import sys;exec(eval(sys.stdin.readline()))"]  # how pytest-xdist starts them
if not (test_process or heavy()) or any(name in os.environ for name in SETTLED):
    os.execv(FRESH, [FRESH, *sys.argv[1:]])

import _signal  # what `signal` and `socket` add takes longer than all that follows
import _socket
import array
import marshal
import resource

PASSED = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)
LIMITS = ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE")

link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
other = os.environ.pop("WARM_PYTHON_OTHER", None)  # the hash seed of the test processes
link.connect(os.path.join(HERE, "tests" if test_process or other else "socket"))
files = []
for name in os.listdir("/proc/self/fd"):
    try:
        os.fstat(int(name))
    except OSError:  # that of the listing itself
        continue
    if int(name) != link.fileno():
        files.append(int(name))
blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
order = {
    "argv": [os.path.join(HERE, "python"), *sys.argv[1:]],
    "blocked": sorted(map(int, blocked)),
    "cores": sorted(os.sched_getaffinity(0)),
    "env": dict(os.environ),
    "files": files,
    "flags": flags,
    "folder": os.getcwd(),
    "ignored": [int(number) for number in PASSED if _signal.getsignal(number) == _signal.SIG_IGN],
    "leader": os.getpgrp() == os.getpid(),
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
    "parent": os.getppid(),
    "umask": os.umask(0o22),
    "words": words,
}
data = marshal.dumps(order)
head = len(data).to_bytes(4, sys.byteorder)
link.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", files))])
link.sendall(data)
# A pipe must end with the fork, whoever started this.
nothing = os.open(os.devnull, os.O_RDWR)
for file in files:
    if file <= 2:
        os.dup2(nothing, file)
    else:
        os.close(file)
for number in PASSED:
    _signal.signal(number, lambda number, frame: link.send(bytes([number])))
_signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)
answer = b""
while len(answer) < 4 and (part := link.recv(4 - len(answer))):
    answer += part
code = int.from_bytes(answer, sys.byteorder, signed=True) if len(answer) == 4 else -_signal.SIGKILL
if code < 0:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code != _signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [-code])
    os.kill(os.getpid(), -code)
os._exit(code)
