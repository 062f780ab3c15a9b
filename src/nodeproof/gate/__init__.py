"""The Kubernetes gate: from a verdict to a node's taint, and nothing without proof.

Pure but for `kube`, the one module that talks to the API. No pytest, no torch, no GPU.
"""
