"""What a log says of records that are not in it: not to be shown, dropped, missed.

Texts: systemd src/shared/logs-show.c and src/journal/journald-kmsg.c, torvalds/linux
kernel/printk/printk.c. None is known to be harmless.
"""

from __future__ import annotations

import re

from nodeproof.parsers.log_lines import Line

UNSHOWN = "[a message that is not shown]"
_LOST = re.compile(
    r"\[\d[\d.]*[BKMGTPE] blob data\]\Z"
    rf"|{re.escape(UNSHOWN)}\Z"
    r"|\*\* \d+ printk messages dropped \*\*"
    r"|(?:\S+ )?systemd-journald(?:\[\d+\])?: Missed \d+ kernel messages"
)


def lost(line: Line) -> bool:
    """Whether a line stands for records of the kernel that nobody can read here."""
    return _LOST.match(line.text) is not None
