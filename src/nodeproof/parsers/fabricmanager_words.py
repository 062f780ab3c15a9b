"""What a line of the fabric manager tells where no tag grades it, as in the journal.

It writes its errors to its file with a tag, and to the journal as bare text beside its progress.
The texts are those of journals that operators show: NVIDIA/gpu-operator issue 610, NVIDIA/nvtrust
issue 128, bottlerocket-os/bottlerocket-kernel-kit pull request 142.
"""

from __future__ import annotations

import re

_NOTHING_WRONG = re.compile(
    r"\b(?:no|0|zero|without)(?: any)? (?:errors?|failures?)\b", re.IGNORECASE
)
_TROUBLE = re.compile(
    r"\bfail(?:s|ed|ing|ures?)?\b|\berrors?\b|\bmismatch|\b(?:don't|doesn't|do(?:es)? not) \w+"
    r"|\bcould(?:n't| not)\b|\bcan(?:'t|not| not)\b|\bunable\b|\bnot (?:found|supported|present|installed"
    r"|loaded|available|running|ready|responding|match|allowed|permitted|accessible|initiali[sz]ed|a valid)"
    r"|\bno such\b|\binvalid\b|\bunexpected\b|\bunsupported\b|\bincompatible|\bmissing\b|\btimed? ?out\b"
    r"|\bdenied\b|\bdegraded?\b|\bexcluding\b|\bexcluded\b|\blost\b|\babort|\bfatal\b|\bcrash|\bkilled\b|\bsegfault"
    r"|\bterminat|\bcorrupt|\bexceed|\binsufficient\b|\bno (?:longer|NVSwitch|NVLink|GPU)|\bPlease\b",
    re.IGNORECASE,
)
_PROGRESS = re.compile(
    r"Success|Connected to \d|(?:NodeId \d+ )?(?:fabric )?partition (?:id )?\d+ is (?:de)?activated"
    r"|multicast group \d+ is (?:allocated|freed)|Detected (?:Pre-)?NVL\d|Start(?:ed|ing)\b|Stopp(?:ed|ing)\b"
    r"|(?:NVIDIA )?Fabric ?Manager (?:has |is )?(?:(?:re)?start|initiali[sz]|version|log|run|shut|build|stop)"
    r"|(?:GPU|NVSwitch)(?: devices?)?(?: count)?: \d|Number of |Initiali[sz]|Load(?:ed|ing)\b|Dumping\b|Using\b"
    r"|Waiting\b|Received\b|GPU probe|Listening\b|Running\b|Reading\b|Creat(?:ed|ing)\b|Enabl(?:ed|ing)\b"
    r"|Regist|Config(?:ured|uring)\b|Shutting down\b|\S+ = |-{3,}",
    re.IGNORECASE,
)


def tells_of_trouble(text: str) -> bool:
    """Whether a line without a tag tells of something that did not work."""
    return _TROUBLE.search(_NOTHING_WRONG.sub("", text)) is not None


def is_progress(text: str) -> bool:
    """Whether a line without a tag is one of those that every sound manager writes."""
    return not text or _PROGRESS.match(text) is not None
