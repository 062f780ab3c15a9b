"""Torch kernels that load a device and check every bit of what it computes.

They know nothing of pytest. Each file runs alone: `python -m nodeproof.kernels.NAME` proves first
that it computes the right thing, and then how fast.
"""
