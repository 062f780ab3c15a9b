"""Collectives with known answers: torch.distributed over NCCL on GPUs, Gloo on CPU devices."""
