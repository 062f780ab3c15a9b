"""The gate's commands as processes: a kubeconfig for them, and a controller to watch from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gate_cluster import IMAGE, Kubelet, results_of
from rehearsal import NODEPROOF

from nodeproof.gate import dispatch
from tests.shipped_run import RUN, Run, judged

SETTINGS = f'image = "{IMAGE}"\n[expected]\n"p5.48xlarge" = 2\n'


def kubeconfig(path: Path, server: str) -> Path:
    """Write a kubeconfig that names one server; JSON is YAML too."""
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(told))
    return path


def finish(kubelet: Kubelet, job: dict[str, Any], node: dict[str, Any], run: Run = RUN) -> None:
    """End a Job as the shipped suites do, for a controller that knows their manifest."""
    data = results_of(job, node, run)
    message = dispatch.message(judged(data).document(), data)
    kubelet.finish(job, run, code=0, message=message, log="\n".join(dispatch.packed(data)))


def until(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until something is so, and return it."""
    ends = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < ends, f"not within {seconds:g} s"
        time.sleep(0.05)
    return found


class Process:
    """`nodeproof controller`, from outside."""

    def __init__(self, folder: Path, config: Path, *more: str, port: int = 0) -> None:
        settings = folder / "settings.toml"
        settings.write_text(SETTINGS)
        self.log = folder / f"controller-{time.monotonic_ns()}.log"
        words = ["controller", "--settings", str(settings), "--port", str(port), *more]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*NODEPROOF, *words],
                env={**os.environ, "KUBECONFIG": str(config)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @property
    def leads(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return " leads\n" in self.log.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; exit status and the seconds until then."""
        at = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(timeout=60), time.monotonic() - at


def told(port: int, path: str) -> tuple[int, str]:
    """Status and text of what a controller answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
