"""Prove a GPU node fit for work before a scheduler may use it."""

__version__ = "0.1.0"
