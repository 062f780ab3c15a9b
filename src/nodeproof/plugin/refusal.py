"""What a run is not begun for."""


class Refusal(Exception):  # noqa: N818  an answer to the user, not a fault
    """The options, a spec or a waiver can't be used. One sentence that says why."""
