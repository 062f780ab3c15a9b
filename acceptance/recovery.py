"""What the driver asks to be done with a GPU, and whom that blames."""

from __future__ import annotations

from nodeproof.checks import Cause, Remedy

# nvml.h, nvmlDeviceGpuRecoveryAction_t; 6 and 7 are known to nvidia-ml-py 13 only.
_ACTIONS = {
    1: ("to reset the GPU", None, Remedy.RESET_GPU),
    2: ("to reboot the node", None, Remedy.REBOOT),
    3: ("to end peer-to-peer traffic and reset the GPU", None, Remedy.RESET_GPU),
    4: ("to drain and reset the GPU", None, Remedy.RESET_GPU),
    5: ("to recover the IMEX domain", Cause.ENVIRONMENT, None),
    6: ("to reset the bus", None, Remedy.REBOOT),
    7: ("to reboot the system", None, Remedy.REBOOT),
}


def recovery(action: int) -> tuple[str, Cause | None, Remedy | None]:
    """Return what is asked for in words, whom it blames and what helps (`None`: as the check says).

    An action that is not known blames nobody.
    """
    unknown = (f"for action {action}, unknown to nodeproof", Cause.ENVIRONMENT, None)
    says, cause, remedy = _ACTIONS.get(action, unknown)
    return f"the driver asks {says}", cause, remedy
