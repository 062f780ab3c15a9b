"""Readers of what drivers and tools write: text in, judged facts out. Pure, standard library only.

Each module is one kind of text. Its `read(data, context)` takes the bytes and what is known beside
them, and returns a `Reading`. The checks and `nodeproof parse` call the same functions.
"""
