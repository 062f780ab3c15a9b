"""The store of a meeting whose host is there, and then isn't: nobody waits for it without end."""

import contextlib
import socket
import threading
import time

import pytest
import torch.distributed as dist

from nodeproof.nccl_tests.stores import GoneError, Store
from nodeproof.worker import Group

PATIENCE_S = 1.0


class Way:
    """The way to a real store: what is sent goes through, until it is cut, as a cable is."""

    def __init__(self, port):
        self.port, self.cut = port, threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._ends = [self._listening]
        threading.Thread(target=self._join, daemon=True).start()

    def _join(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self.port))
                self._ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, this, that):
        with contextlib.suppress(OSError):
            while data := this.recv(1 << 16):
                if not self.cut.is_set():
                    that.sendall(data)

    def end(self):
        for each in self._ends:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def way():
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = Way(served.port)
    yield made
    made.end()


def store(way, meeting="m"):
    group = Group(rank=0, size=1, store=f"tcp://{way.address}/{meeting}", labels=["a"], host="h")
    return Store(group, timeout_s=PATIENCE_S)


def test_what_is_written_is_found_and_what_is_not_is_none(way):
    here = store(way)
    here.set("key", "value")
    assert here.find("key") == b"value"
    assert here.find("other") is None
    assert store(way, "another").find("key") is None


def test_a_store_that_is_cut_off_is_told_in_time_and_not_waited_for_again(way):
    here = store(way)
    here.set("key", "value")
    way.cut.set()
    begun = time.monotonic()
    for ask in (lambda: here.find("key"), lambda: here.find("key"), lambda: here.set("key", "v")):
        with pytest.raises(GoneError, match=f"the store tcp://{way.address}/m can't be reached: "):
            ask()
    assert time.monotonic() - begun < 3 * PATIENCE_S  # waited once, and not three times


def test_a_store_that_takes_no_greeting_is_told_in_time(way):
    way.cut.set()
    begun = time.monotonic()
    with pytest.raises(GoneError, match="can't be reached"):
        store(way)
    assert time.monotonic() - begun < 10 * PATIENCE_S
