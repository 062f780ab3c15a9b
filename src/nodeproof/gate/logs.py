"""The log of a pod of ours whose attempt is over."""

from __future__ import annotations

from nodeproof.gate.attempt import CONTAINER, Job
from nodeproof.gate.kube import Kube, Refused
from nodeproof.gate.names import Names

_LOST_S = 120.0  # a log that can't be read for this long after its Job has ended is lost


def of(kube: Kube, names: Names, job: Job, pod: str, *, now: float) -> str | None:
    """The log of a pod of this Job; `None` where it is lost. Raises `Refused` to be asked again."""
    text = kube.log(names.namespace, pod, CONTAINER)
    over = job.ended if job.ended is not None else job.created
    if text is None and now - over < _LOST_S:
        raise Refused(0, f"the log of pod {pod} can't be read yet")
    return text
