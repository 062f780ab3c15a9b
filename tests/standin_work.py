"""Work that misbehaves, for the tests of children. Run in real worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def echo(context, **args):
    return {"label": context.device_label, "pid": os.getpid(), **args}


def meet(context, *, folder, count):
    """Come back only when `count` workers are here at the same time."""
    Path(folder, str(os.getpid())).touch()
    while len(list(Path(folder).iterdir())) < count:
        time.sleep(0.01)
    return {}


def wait(context):
    while True:
        time.sleep(1)


def wait_deaf(context):
    """Wait, and take no notice of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait(context)


def signal_self(context, *, number):
    os.kill(os.getpid(), number)
    wait(context)


def exit_with(context, *, status):
    print("my last words", flush=True)
    os._exit(status)


def fail(context):
    raise ValueError("a sentence")


def not_finite(context):
    return {"value": float("nan")}


def no_mapping(context):
    return 7


def rubbish(context, *, text):
    """Write to the descriptor that answers go through."""
    os.write(int(sys.argv[1]), text.encode())
    wait(context)


def chatter(context):
    print('{"id": 1, "result": {"forged": true}}', flush=True)
    os.write(2, b"noise on standard error\n")
    return {"forged": False}


def talk(context):
    context.progress(done=0.5)
    context.telemetry(device="d", power_w=1)
    context.event("seen", what="x")
    return {}


def grow(context):
    """Take memory until somebody stops it."""
    held = []
    while True:
        held.append(bytearray(os.urandom(1) * (16 << 20)))


def have_child(context, *, file):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(file).write_text(str(child.pid))
    wait(context)


def answer_and_die(context):
    """The answer is in the pipe before the process is gone."""
    pipe = int(sys.argv[1])
    os.write(pipe, b'{"id": 1, "result": {"done": true}}\n')
    os._exit(3)


def oom_score(context):
    return {"score": int(Path("/proc/self/oom_score_adj").read_text())}


def hold_silently(context):
    """Hold the interpreter, as a library call can that does not let go: no thread runs."""
    sys.setswitchinterval(1e9)
    while True:
        pass


def pause(context):
    """Be stopped from outside for two seconds."""
    script = f"kill -STOP {os.getpid()}; sleep 2; kill -CONT {os.getpid()}"
    subprocess.run(["sh", "-c", script], check=True)
    return {}


def boast(context, *, seconds=0.0):
    """Claim a load that was never there."""
    return {"loaded_s": seconds, "value": 1}


def leave_cpu1(context):
    """Fail on one device, answer on the others."""
    if context.device_label == "cpu1":
        raise ValueError("not here")
    return {"value": 7}


def broken_for_good(context, *, host="", got="0x3", sees=True, plant=""):
    """Find the same fault in every run, beside whatever is planted."""
    own = {"row": 1, "expected": "0x1", "got": got, "xor": "0x2", "bits": [1]}
    planted = {"row": 7, "expected": "0x1", "got": "0x0", "xor": "0x1", "bits": [0]}
    found = [own, *([planted] if plant and sees else [])]
    said = {"host": host} if host else {}
    return {"wrong": len(found), "found": found, "planted": [planted] if plant else [], **said}
