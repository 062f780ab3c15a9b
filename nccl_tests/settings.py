"""Variables of the environment that change how GPUs talk to each other."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Of the network between nodes, of logs, and NCCL's own version in NVIDIA's images: no part in what
# the GPUs of one node do.
_ELSEWHERE = ("NCCL_DEBUG", "NCCL_SOCKET", "NCCL_IB_", "NCCL_NET", "NCCL_OOB_", "NCCL_VERSION")
_OF_CUDA = ("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS")
_LONGEST = 40  # characters of a value that are told


def inside_the_node(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What is set that has a say in the transport between GPUs of one node, by name.

    They are kept, since a site has its reasons, and told, since they explain a slow node as well
    as a broken one does.
    """
    return {
        name: value[:_LONGEST]
        for name, value in sorted(environment.items())
        if name in _OF_CUDA or (name.startswith("NCCL_") and not name.startswith(_ELSEWHERE))
    }
