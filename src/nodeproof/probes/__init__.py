"""Readers of the node. Only this package touches NVML, /proc and /sys."""
