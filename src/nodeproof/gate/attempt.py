"""One Job of the gate and its pod, as the gate sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeproof.gate.names import Names
from nodeproof.gate.node import seconds

CONTAINER = "nodeproof"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The pod of a Job. `exit_code` is `None` as long as its container has not ended."""

    name: str
    uid: str
    node: str
    phase: str
    reason: str  # of the pod or of its container: Evicted, OOMKilled, DeadlineExceeded, Error
    exit_code: int | None
    message: str  # the termination message
    image: str  # that the kubelet was told to pull
    image_id: str  # what the runtime calls it
    waiting: str  # why the container has not started, in words
    deleting: bool

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A Job of ours. What it was started with stands in its own annotations, which we wrote."""

    name: str
    uid: str
    node_uid: str
    boot_id: str
    trigger: str
    attempt: int
    nonce: str
    image: str
    profile: str
    spec_digest: str
    devices: int  # GPUs expected
    created: float
    ended: float | None  # when it completed or failed
    complete: bool
    failure: str  # reason of its Failed condition
    deleting: bool
    pods: tuple[Pod, ...] = ()


def job_of(data: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], names: Names) -> Job | None:
    """Read a Job and its pods; `None` for a Job that does not say what a Job of ours says."""
    metadata, status = data.get("metadata") or {}, data.get("status") or {}
    told = metadata.get("annotations") or {}
    try:
        attempt = int(told[names.label("attempt")])
        devices = int(told[names.label("devices")])
        texts = {n: str(told[names.label(n)]) for n in _TOLD}
    except (KeyError, TypeError, ValueError):
        return None
    conditions = {
        str(c.get("type")): c
        for c in status.get("conditions") or []
        if isinstance(c, dict) and c.get("status") == "True"
    }
    ending = conditions.get("Complete") or conditions.get("Failed")
    uid = str(metadata.get("uid") or "")
    return Job(
        name=str(metadata.get("name") or ""),
        uid=uid,
        node_uid=texts["node-uid"],
        boot_id=texts["boot-id"],
        trigger=texts["trigger"],
        nonce=texts["nonce"],
        image=texts["image"],
        profile=texts["profile"],
        spec_digest=texts["spec-digest"],
        attempt=attempt,
        devices=devices,
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        ended=seconds(ending.get("lastTransitionTime")) if ending else None,
        complete="Complete" in conditions,
        failure=str((conditions.get("Failed") or {}).get("reason") or ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        pods=tuple(_pod(p) for p in pods if _owned(p, uid)),
    )


_TOLD = ("node-uid", "boot-id", "trigger", "nonce", "image", "profile", "spec-digest")


def _owned(pod: Mapping[str, Any], uid: str) -> bool:
    owners = (pod.get("metadata") or {}).get("ownerReferences") or []
    return any(o.get("uid") == uid and o.get("kind") == "Job" for o in owners)


def _pod(data: Mapping[str, Any]) -> Pod:
    metadata, status = data.get("metadata") or {}, data.get("status") or {}
    container: Mapping[str, Any] = next(
        (c for c in status.get("containerStatuses") or [] if c.get("name") == CONTAINER), {}
    )
    state = container.get("state") or {}
    ended = state.get("terminated") or {}
    code = ended.get("exitCode")
    wait = state.get("waiting") or {}
    scheduling: Mapping[str, Any] = next(
        (
            c
            for c in status.get("conditions") or []
            if c.get("type") == "PodScheduled" and c.get("status") == "False"
        ),
        {},
    )
    waiting = [str(t) for t in (wait.get("reason"), wait.get("message")) if t]
    waiting += [str(t) for t in (scheduling.get("reason"), scheduling.get("message")) if t]
    return Pod(
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        node=str((data.get("spec") or {}).get("nodeName") or ""),
        phase=str(status.get("phase") or ""),
        reason=str(status.get("reason") or ended.get("reason") or ""),
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        message=str(ended.get("message") or ""),
        image=next(
            (
                str(c.get("image") or "")
                for c in (data.get("spec") or {}).get("containers") or []
                if c.get("name") == CONTAINER
            ),
            "",
        ),
        image_id=str(container.get("imageID") or ""),
        waiting=": ".join(waiting),
        deleting=bool(metadata.get("deletionTimestamp")),
    )
