"""Nodes that are measured together: who is there, what they are asked to do, what came of it."""
