"""Whether a line ends inside the words by which it would have told of a fault.

A log that was cut, or copied from a narrow window, says less than the kernel did. No sentence of
the kernel or of its drivers ends where these do.
"""

from __future__ import annotations

import re

_PCI = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]"
_DEVICE = rf"(?:\S+ )?{_PCI}: +"
_SEVERITIES = (
    *("Corrected", "Correctable"),
    *("Uncorrected (Fatal)", "Uncorrected (Non-Fatal)"),
    *("Uncorrectable (Fatal)", "Uncorrectable (Non-Fatal)"),
)
# What stands in front, and the words of which there is only a part.
_SENTENCES = tuple(
    (re.compile(front), least, words)
    for front, least, words in (
        (
            _DEVICE + r"AER: *",
            0,
            tuple(f"{many}{word} error" for word in _SEVERITIES for many in ("", "Multiple ")),
        ),
        (
            _DEVICE + r"(?:AER: +)?",
            4,
            tuple(f"PCIe Bus Error: severity={word}" for word in _SEVERITIES),
        ),
        (
            _DEVICE + r"(?:AER: +)?DPC: *",
            0,
            (
                *("containment event, status:0", "unmasked uncorrectable error detected"),
                *("ERR_FATAL detected", "RP PIO error detected"),
            ),
        ),
        (_DEVICE + r"[\d.]+ Gb/s available PCIe bandwidth", 1, (", limited by ",)),
        (r"INFO: task .{1,80}:\d+ *", 0, ("blocked for more than 1",)),
        (r"(?:rcu: )?INFO: rcu\w* ", 1, ("self-detected stall", "detected stalls")),
        (
            r"(?:(?:NMI )?watchdog: )?BUG: ",
            1,
            ("soft lockup - CPU#", "unable to handle ", "workqueue lockup - pool"),
        ),
        (r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#\d+ *", 0, ("stuck for",)),
        (
            r"(?:NVRM: *)+(?:GPU (?:at )?[\w:.]{7,24}: )?",
            3,
            ("GPU has fallen off ", "RmInitAdapter failed!", "rm_init_adapter failed"),
        ),
        (
            rf"mlx5_core {_PCI}(?: [\w@.-]+)?: ",
            1,
            ("TX timeout detected", "TX timeout on queue"),
        ),
        (
            rf"mlx5_core {_PCI}: (?:\w+:\d+:\(pid \d+\): )?",
            3,
            ("device's health compromised",),
        ),
        (
            r"",
            10,
            (
                *("Kernel panic - not syncing", "Out of memory: Killed process 1"),
                *(
                    "Memory cgroup out of memory: Killed process 1",
                    "oom-kill:constraint=CONSTRAINT_",
                ),
            ),
        ),
        (
            r"(?:mce: )?\[Hardware Error\]: ",
            1,
            ("Machine check events logged",),
        ),
        (
            r"infiniband efa_\d+: ",
            1,
            (
                "The device didn't send any completion",
                "The device sent a completion but the driver didn't receive",
            ),
        ),
    )
)
_BEGUN = re.compile(
    r"EDAC MC\d{1,4}:(?: \d{0,18}(?: [CU])?)?\Z"
    r"|nvidia-nvswitch\d*: +SXid +\("  # without a code behind its bracket
    r"|(?:\w+ \S+ \S+: )?NETDEV WATCHDOG\b"
    rf"|{_DEVICE}[\d.]+ Gb/s available PCIe bandwidth, limited by "
    r"|(?:mce: )?\[Hardware Error\]: CPU:? ?\d+: Machine [Cc]heck.{0,40} Bank \d+: [\da-fA-F]{0,15}\Z"
)


def cut(text: str) -> bool:
    """Whether a line that no reader takes is the beginning of one that tells of a fault."""
    if _BEGUN.match(text):
        return True
    for front, least, sentences in _SENTENCES:
        found = front.match(text)
        if found is None:
            continue
        rest = text[found.end() :]
        if len(rest) >= least and any(s.startswith(rest) for s in sentences):
            return True
    return False
