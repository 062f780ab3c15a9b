"""What to do for each remedy, in one sentence: the same on the terminal and in every report."""

from __future__ import annotations

from nodeproof.model import Remedy

TO_DO = {
    Remedy.NONE: "Nothing.",
    Remedy.RETEST: "Put right what is said above, then test again; it condemns no hardware.",
    Remedy.KILL_WORKLOAD: "End what else runs on the device, then test again.",
    Remedy.RESET_GPU: "Drain the node, reset the GPU (nvidia-smi --gpu-reset), then test again.",
    Remedy.REBOOT: "Reboot the node, then test again.",
    Remedy.REPLACE: "Keep the node out of service and have the named part replaced.",
}
