"""Ways by which a bad node still passes here: each fails until it is closed, and then says so.

What they have in common: the node says less of itself than it should, and no spec says what that
is. docs/fail-open.md has them in words.
"""

from __future__ import annotations

import pytest

from nodeproof.probes.kernel_lines import stamped


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="who makes up a log can make up its first line"
)
def test_a_log_that_is_made_up_with_the_kernels_first_line_is_no_whole_log():
    text = (
        "<5>[    0.000000] Linux version 4.4.0\n<6>[    0.354495] Daemonizing children...\n"
        "<6>[    2.100000] Ready!\n"
    )
    assert not stamped(text, "syslog(2)").complete
