"""The controller's own metrics, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping

from nodeproof.gate.actions import Phase


def render(
    *, phases: Mapping[Phase, int], requests: int, running: int, breakers: Mapping[str, str]
) -> str:
    """Every phase is there with its count, so that a missing series is a missing controller."""
    lines = [
        "# HELP nodeproof_nodes Nodes by where they stand.",
        "# TYPE nodeproof_nodes gauge",
        *(f'nodeproof_nodes{{phase="{phase}"}} {phases.get(phase, 0)}' for phase in Phase),
        "# HELP nodeproof_tests_running Jobs that have not ended.",
        "# TYPE nodeproof_tests_running gauge",
        f"nodeproof_tests_running {running}",
        "# HELP nodeproof_api_requests_total Requests to the API server.",
        "# TYPE nodeproof_api_requests_total counter",
        f"nodeproof_api_requests_total {requests}",
        "# HELP nodeproof_breaker_open Whether nodes of a kind are no longer quarantined.",
        "# TYPE nodeproof_breaker_open gauge",
        *(
            f'nodeproof_breaker_open{{kind="{_escaped(kind)}"}} {int(bool(why))}'
            for kind, why in sorted(breakers.items())
        ),
    ]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
