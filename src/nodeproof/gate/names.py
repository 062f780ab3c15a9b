"""Every name that the gate uses in a cluster, in one place, so that a site can change them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Keys of taints, conditions, annotations and labels, all below one domain."""

    domain: str = "nodeproof.dev"
    namespace: str = "nodeproof-system"
    startup: str = ""  # key of the startup taint, where an autoscaler knows such by its own prefix

    @property
    def pending(self) -> str:
        """Key of the startup taint: here until an accept for this boot."""
        return self.startup or f"{self.domain}/pending"

    @property
    def quarantined(self) -> str:
        """Key of the taint of a rejected node. No startup taint, so autoscalers don't count it."""
        return f"{self.domain}/quarantined"

    @property
    def accepted(self) -> str:
        """Type of the condition."""
        return f"{self.domain}/Accepted"

    @property
    def accepted_boot(self) -> str:
        """Annotation: the boot id for which the node was accepted."""
        return f"{self.domain}/accepted-boot-id"

    @property
    def accepted_devices(self) -> str:
        """Annotation: digest of the GPUs for which the node was accepted."""
        return f"{self.domain}/accepted-devices"

    @property
    def devices(self) -> str:
        """Annotation: boot id, and digest of the GPUs that the node itself says it has now."""
        return f"{self.domain}/devices"

    @property
    def verdict(self) -> str:
        """Annotation: the last verdict in short, as JSON."""
        return f"{self.domain}/verdict"

    @property
    def held_for(self) -> str:
        """Annotation: the reason for which a node is held until somebody asks; empty for none."""
        return f"{self.domain}/held-for"

    @property
    def requalify(self) -> str:
        """Annotation: a word of whoever asks for another test; a new word asks again."""
        return f"{self.domain}/requalify"

    @property
    def requalified(self) -> str:
        """Annotation: the word that was last answered."""
        return f"{self.domain}/requalified"

    @property
    def suspected(self) -> str:
        """Annotation: what monitors suspected that a test answered; with a ? what none has yet."""
        return f"{self.domain}/suspected"

    @property
    def awaits(self) -> str:
        """Annotation: the proof with which a node waits for others to be measured with, as JSON."""
        return f"{self.domain}/awaits-group"

    def label(self, name: str) -> str:
        """Label or annotation of a Job."""
        return f"{self.domain}/{name}"


EFFECT = "NoSchedule"  # of both taints: NoExecute would end the pods that set a node up
EVERYTHING_PASSED = "AllChecksPassed"  # the one reason under which the condition is True
TOO_OFTEN = "UndecidedTooOften"  # reason of a node whose attempts are used up
AWAITING = "AwaitingGroup"  # reason of a node that passed alone, and is to be measured with others
BREAKER_OPEN = "BreakerOpen"  # reason of one that was rejected, and is not condemned for it yet
