"""The controller at scale: nodes arrive over an hour, their tests pass at once, all are released.

    python benchmarks/controller.py [--nodes 10000] [--factor 4]

One run serves the tests' API server in a process of its own, which also plays the kubelets: a Job
of the gate ends as soon as it is there, with the results of eight GPUs that passed every shipped
check. The controller runs in this process, as in its pod, with no cap on tests at once: what is
measured is the controller. The hour is compressed: `factor` 4 lets it pass in 900 seconds, so that
the load is four times that of the hour. Latencies are in seconds as they pass; times `factor` they
bound those of the hour from above. `--nodes 500 --factor 80` has the same load for 45 seconds.

Prints one JSON line: seconds from a node's arrival to its Job, requests to the API for each
accepted node (8 or fewer; all of the controller's, reads and watches too), its memory and CPU.
A node has its condition written again every 5 minutes of its life, of which a
compressed hour shows a part.
"""

from __future__ import annotations

import argparse
import bisect
import json
import multiprocessing
import resource
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path
from typing import Any

from kubernetes import client

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # the API server and the samples are the tests' own

from gate_cluster import DIGEST, IMAGE, JOBS, NAMES, PODS, keys, put_node, results_of, told

from nodeproof.gate import dispatch
from nodeproof.gate.attempt import CONTAINER
from nodeproof.gate.controller import Controller
from nodeproof.gate.kube import Kube
from nodeproof.gate.settings import Settings
from nodeproof.manifest import shipped
from nodeproof.spec import NO_SPEC
from tests.apiserver.server import serving
from tests.apiserver.store import NODES, Store
from tests.shipped_run import accepted, judged

GPUS = 8
HOUR_S = 3600.0
KEPT = 20_000  # of the server's history: watches are never further behind
PATIENCE_S = 600.0  # past the last arrival


def main() -> None:
    """Run, and refuse to report a figure of a run in which a node was left behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--factor", type=float, default=4.0)
    args = parser.parse_args()
    seconds = HOUR_S / args.factor
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    cluster = context.Process(target=_cluster, args=(theirs, args.nodes, seconds), daemon=True)
    cluster.start()
    host = ours.recv()
    controller = _controller(host, args.nodes)
    work = threading.Thread(target=controller.run, daemon=True)
    work.start()
    before = resource.getrusage(resource.RUSAGE_SELF)
    ours.send("start")
    if not ours.poll(seconds + PATIENCE_S):
        raise SystemExit(f"the nodes were not all released; {dict(controller.phases())}")
    waits = ours.recv()
    _quiet(controller)
    after = resource.getrusage(resource.RUSAGE_SELF)
    requests = controller.requests
    controller.stop()
    ours.send("over")
    cluster.join(10)
    cut = statistics.quantiles(waits, n=100)
    figures = {
        "benchmark": "controller",
        "nodes": args.nodes,
        "factor": args.factor,
        "to_job_p50_s": round(cut[49], 3),
        "to_job_p99_s": round(cut[98], 3),
        "to_job_p99_of_the_hour_s": round(cut[98] * args.factor, 1),
        "requests_per_node": round(requests / args.nodes, 2),
        "peak_mib": round(after.ru_maxrss / 1024),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }
    print(json.dumps(figures))


def _quiet(controller: Controller) -> None:
    """Wait until it has nothing more to say of the last nodes."""
    seen = -1
    while seen != controller.requests:
        seen = controller.requests
        time.sleep(1.0)


def _controller(host: str, nodes: int) -> Controller:
    configuration = client.Configuration()
    configuration.host = host
    settings = Settings(
        image=IMAGE, expected={"p5.48xlarge": GPUS}, installed_at=1.0, tests_at_once=nodes
    )
    controller = Controller(Kube(client.ApiClient(configuration)), settings, NO_SPEC, shipped())
    controller.start()
    return controller


def _cluster(pipe: Connection, nodes: int, seconds: float) -> None:
    """Serve, let nodes arrive, play their kubelets; send how long each waited for its Job."""
    store = Store()
    with serving(store) as server:
        kubelets = _Kubelets(store, nodes)
        pipe.send(server.client().configuration.host)
        pipe.recv()
        threading.Thread(target=kubelets.play, daemon=True).start()
        begun = time.monotonic()
        for number in range(nodes):
            time.sleep(max(0.0, begun + seconds * number / nodes - time.monotonic()))
            _arrive(store, f"node-{number:05d}", kubelets)
        kubelets.released.wait()
        pipe.send(list(kubelets.waited.values()))
        pipe.recv()  # until the other side has what it wants and ends


def _arrive(store: Store, name: str, kubelets: _Kubelets) -> None:
    gpus = {"nvidia.com/gpu": str(GPUS)}
    kubelets.arrived[name] = time.monotonic()
    put_node(store, name, status={"capacity": gpus, "allocatable": gpus})


class _Kubelets:
    """Follows the store: ends each Job as it is made, and counts the nodes that were released."""

    def __init__(self, store: Store, nodes: int) -> None:
        self.store = store
        self.arrived: dict[str, float] = {}
        self.waited: dict[str, float] = {}
        self.released = threading.Event()
        self._left = nodes
        self._free: set[str] = set()
        self._data, self._said = _evidence()

    def play(self) -> None:
        at = 0
        while not self.released.is_set():
            with self.store.changed:
                first = bisect.bisect_right(self.store.history, at, key=itemgetter(0))
                due = self.store.history[first:]
                if not due:
                    self.store.changed.wait(0.1)
                    continue
                self._forget()
            for version, event, found in due:
                at = version
                if event == "ADDED" and found["kind"] == "Job":
                    self._end(found)
                elif found["kind"] == "Node" and NAMES.pending not in keys(found):
                    self._free.add(found["metadata"]["name"])
            if len(self._free) == self._left:
                self.released.set()

    def _forget(self) -> None:
        """Compact what every watch has passed."""
        if len(self.store.history) > 2 * KEPT:
            del self.store.history[:-KEPT]
            self.store.oldest = self.store.history[0][0] - 1

    def _end(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["ownerReferences"][0]["name"]
        self.waited[name] = time.monotonic() - self.arrived[name]
        node = self.store.get(f"{NODES}/{name}")
        data = self._data
        for word, value in (
            (b"@nonce@", told(job, "nonce")),
            (b"@uid@", node["metadata"]["uid"]),
            (b"@boot@", node["status"]["nodeInfo"]["bootID"]),
            (b"@name@", name),
        ):
            data = data.replace(word, value.encode())
        said = {
            **self._said,
            "nonce": told(job, "nonce"),
            "node_uid": node["metadata"]["uid"],
            "boot_id": node["status"]["nodeInfo"]["bootID"],
            "results": dispatch.digest(data),
        }
        self._write(job, name, json.dumps(said), data)

    def _write(self, job: dict[str, Any], node: str, message: str, data: bytes) -> None:
        metadata = job["metadata"]
        pod = f"{metadata['name']}-pod"
        self.store.logs[pod] = "\n".join(dispatch.packed(data))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"]}
        ended = {"terminated": {"exitCode": 0, "message": message}}
        container = {"name": CONTAINER, "imageID": f"x@{DIGEST}", "state": ended}
        template = job["spec"]["template"]
        self.store.create(
            PODS,
            {
                "metadata": {
                    "name": pod,
                    "labels": template["metadata"]["labels"],
                    "ownerReferences": [{**owner, "uid": metadata["uid"]}],
                },
                "spec": {**template["spec"], "nodeName": node},
                "status": {"phase": "Succeeded", "containerStatuses": [container]},
            },
        )
        done = {"type": "Complete", "status": "True", "lastTransitionTime": self.store.stamp()}
        self.store.change(
            f"{JOBS}/{metadata['name']}", lambda o: o.update(status={"conditions": [done]})
        )


def _evidence() -> tuple[bytes, dict[str, Any]]:
    """Results and message of a node that passes, with words in place of what binds them."""
    annotations = {"nonce": "@nonce@", "profile": "gate", "spec-digest": NO_SPEC.digest}
    job = {"metadata": {"annotations": {NAMES.label(k): v for k, v in annotations.items()}}}
    node = {
        "metadata": {"name": "@name@", "uid": "@uid@"},
        "status": {"nodeInfo": {"bootID": "@boot@"}},
    }
    data = results_of(job, node, accepted(GPUS))
    message: dict[str, Any] = json.loads(dispatch.message(judged(data).document(), data))
    return data, message


if __name__ == "__main__":
    main()
