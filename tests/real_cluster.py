"""A real kube-apiserver with its etcd, offered as the fake one is, so that tests run on both.

`KUBEBUILDER_ASSETS` names a directory with both programs, of Kubernetes 1.20 or newer. There is no
kubelet and no controller manager: the tests play them. What a kubelet serves, the logs of its pods,
is served here, by HTTPS, as the API server asks for it. The gate comes as its own identity, with the
rights of k8s/ and no others; anybody else as the administrator says, by impersonation.
"""

from __future__ import annotations

import atexit
import functools
import http.client
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from gate_cluster import NAMES
from kubernetes import client

from tests.apiserver.store import Status
from tests.real_store import RealStore

GATE = f"system:serviceaccount:{NAMES.namespace}:nodeproof-controller"
ROLES = Path(__file__).parents[1] / "k8s/controller/roles.yaml"
MAY_EVICT = Path(__file__).parents[1] / "k8s/overlays/evict/roles.yaml"
_AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, verbs: [create, update, patch]}]
"""


def assets() -> Path | None:
    """The directory with a kube-apiserver and an etcd, if one is named."""
    named = os.environ.get("KUBEBUILDER_ASSETS", "")
    folder = Path(named) if named else None
    return folder if folder and (folder / "kube-apiserver").exists() else None


class RealServer:
    """One API server for all tests of a session."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder, self._programs = folder, programs
        self.audited = folder / "audit.jsonl"  # what was written, by whom, and what is noted of it
        self._tokens = {"admin": secrets.token_hex(16), GATE: secrets.token_hex(16)}
        self._started: list[subprocess.Popen[bytes]] = []
        self._kubelet: ThreadingHTTPServer | None = None

    def start(self) -> None:
        etcd, peer, self._port = _free(), _free(), _free()
        tokens = self._folder / "tokens.csv"
        tokens.write_text(
            f"{self._tokens['admin']},admin,admin,system:masters\n{self._tokens[GATE]},{GATE},gate\n"
        )
        audit = self._folder / "audit.yaml"
        audit.write_text(_AUDIT)
        at, peers = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        self._run(
            "etcd",
            *(f"--data-dir={self._folder / 'etcd'}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={at}", f"--advertise-client-urls={at}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
        )
        certificates = self._folder / "certificates"
        key = self._folder / "key.pem"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self._run(
            "kube-apiserver",
            *(f"--etcd-servers={at}", f"--secure-port={self._port}", f"--cert-dir={certificates}"),
            *("--bind-address=127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24"),
            "--allow-privileged=true",  # or it, and no policy, would refuse such pods
            *(f"--token-auth-file={tokens}", "--anonymous-auth=false"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *(f"--audit-policy-file={audit}", f"--audit-log-path={self.audited}"),
            *(
                "--service-account-issuer=https://test.example.com",
                f"--service-account-key-file={key}",
            ),
            f"--service-account-signing-key-file={key}",
            # Nobody here makes service accounts, nor takes the taints of new nodes off.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--kubelet-preferred-address-types=InternalIP",
        )
        certificate = certificates / "apiserver.crt"
        self._await(certificate.exists)
        self._trust = ssl.create_default_context(cafile=str(certificate))
        self._trust.check_hostname = False
        self._await(self._answers)
        self._serve_logs(certificate, certificates / "apiserver.key")
        assert self._kubelet is not None
        self.store = RealStore(
            self._port, self._tokens["admin"], self._trust, self._kubelet.server_address[1]
        )
        self._kubelet.store = self.store  # type: ignore[attr-defined]  # for its handler
        namespace = {"metadata": {"name": NAMES.namespace}}
        self.store.ask("POST", "/api/v1/namespaces", namespace)
        self.grant(ROLES)

    def client(self) -> client.ApiClient:
        """The official client, as the gate's own identity."""
        told = client.Configuration()
        told.host = f"https://127.0.0.1:{self._port}"
        told.ssl_ca_cert = str(self._folder / "certificates/apiserver.crt")
        told.assert_hostname = False
        told.api_key["BearerToken"] = f"Bearer {self._tokens[GATE]}"
        return client.ApiClient(told)

    def stop(self) -> None:
        if self._kubelet:
            self._kubelet.shutdown()
            self._kubelet.server_close()
        for process in self._started:
            process.kill()  # nothing of it is kept, and open watches hold a softer end up
            process.wait(30)

    def said(self) -> str:
        """The end of what the programs wrote."""
        return "\n".join(p.read_text()[-3000:] for p in self._folder.glob("*.log"))

    def grant(self, roles: Path) -> None:
        """Apply roles that are shipped."""
        self.store.apply(yaml.safe_load_all(roles.read_text()))

    def _answers(self) -> bool:
        try:
            RealStore(self._port, self._tokens["admin"], self._trust, 0).get(
                "/api/v1/namespaces/default"  # made when everything else has started
            )
        except (OSError, ValueError, Status, http.client.HTTPException):
            return False
        return True

    def _await(self, what: Callable[[], bool]) -> None:
        ends = time.monotonic() + 180
        while not what():
            alive = all(p.poll() is None for p in self._started)
            assert alive, self.said()
            assert time.monotonic() < ends, self.said()
            time.sleep(0.1)

    def _run(self, program: str, *words: str) -> None:
        with (self._folder / f"{program}.log").open("wb") as out:
            process = subprocess.Popen(
                [self._programs / program, *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        self._started.append(process)

    def _serve_logs(self, certificate: Path, key: Path) -> None:
        self._kubelet = ThreadingHTTPServer(("127.0.0.1", 0), _Logs)
        self._kubelet.daemon_threads = True
        wrapping = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        wrapping.load_cert_chain(certificate, key)
        self._kubelet.socket = wrapping.wrap_socket(self._kubelet.socket, server_side=True)
        threading.Thread(target=self._kubelet.serve_forever, args=(0.05,), daemon=True).start()


class _Logs(BaseHTTPRequestHandler):
    """What a kubelet answers for /containerLogs/NAMESPACE/POD/CONTAINER."""

    def do_GET(self) -> None:
        pod = self.path.partition("?")[0].split("/")[3]
        log = self.server.store.logs.get(pod)  # type: ignore[attr-defined]  # set when it starts
        data = (log or "").encode()
        self.send_response(500 if log is None else 200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(folder: Path) -> Iterator[RealServer]:
    """A server in this folder, ended with everything that it started."""
    programs = assets()
    assert programs is not None
    server = RealServer(folder, programs)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def shared() -> RealServer:
    """The one server of this process, ended with it. Raises what kept it from starting, once and again."""
    server = _shared()
    if isinstance(server, Exception):
        raise server
    return server


@functools.cache
def _shared() -> RealServer | Exception:
    context = running(Path(tempfile.mkdtemp(prefix="nodeproof-cluster-")))
    try:
        server = context.__enter__()
    except Exception as error:  # noqa: BLE001  raised by whoever asks
        return error
    atexit.register(context.__exit__, None, None, None)
    return server


def _free() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
