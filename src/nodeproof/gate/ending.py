"""How an attempt ended, and what is said of one that has not. Pure."""

from __future__ import annotations

import re

from nodeproof.gate.attempt import Job, Pod
from nodeproof.gate.proof import Judged, Ruling
from nodeproof.gate.settings import Settings
from nodeproof.verdict import Decision

_WORDS = 500  # of what a pod waits for: the scheduler says a clause for each node of a cluster
_IN_BRACKETS = re.compile(r"\((.*)\)", re.DOTALL)
_NO_POD = "a quota, a policy or a webhook may refuse its pod"


def ended(job: Job, settings: Settings, now: float, said: str = "") -> Pod | Judged | None:
    """How a Job ended: the pod to read, or a ruling without one; `None` while it goes on.

    `said` is the message of our condition, which still has what a pod waited for that is gone.

    A pod that will not die does not hold the verdict up: past the wall clock it is given up.
    """
    over = [p for p in job.pods if p.over or p.exit_code is not None]
    if over and (job.ended is not None or len(over) == len(job.pods)):
        return max(over, key=lambda p: p.exit_code is not None)
    if job.deleting:
        return undecided(Ruling.LOST, f"Job {job.name} was deleted")
    if job.ended is not None:
        if job.failure == "DeadlineExceeded":
            return undecided(
                Ruling.TIMEOUT, f"Job {job.name} ran past its deadline{_waited_for(job, said)}"
            )
        return undecided(
            Ruling.LOST, f"Job {job.name} ended ({job.failure or 'complete'}) without a pod"
        )
    if now > job.created + wall_s(settings) and not job.pods:
        return undecided(
            Ruling.TIMEOUT,
            f"Job {job.name} is past every deadline and has not ended{_waited_for(job, said)}",
        )
    if now > job.created + wall_s(settings):
        return undecided(
            Ruling.TIMEOUT,
            f"Job {job.name} is past every deadline and has not ended: a hung driver may hold its "
            f"pod; reboot the node{waiting_for(job)}",
        )
    return None


def wall_s(settings: Settings) -> float:
    """Seconds after which a Job is given up, whatever it says."""
    return settings.run_deadline_s + settings.job_margin_s + settings.wall_margin_s


def attempt_text(number: int, settings: Settings, name: str) -> str:
    """Which attempt this is, and its Job."""
    return f"attempt {number} of {settings.attempts} is Job {name}"


def waiting_for(job: Job) -> str:
    """What its pod waits for, in brackets; `""` for nothing."""
    waiting = next((p.waiting for p in job.pods if p.waiting), "")
    return f" ({waiting[:_WORDS]})" if waiting else ""


def _waited_for(job: Job, said: str) -> str:
    """What its pod waited for at the last look, where the Job's controller has deleted it since."""
    if job.pods:
        return waiting_for(job)
    _, _, behind = said.partition(job.name)
    found = _IN_BRACKETS.search(behind)
    if found:
        return f" ({found[1]})"
    return f": no pod of it is there; see the events of the Job ({_NO_POD})"


def undecided(ruling: Ruling, text: str) -> Judged:
    """What proves nothing, for a reason."""
    return Judged(decision=Decision.UNDECIDED, ruling=ruling, text=text)
