"""What the results of a diagnostic come to, whichever form they were printed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nodeproof.parsers.dcgm_complaint import Complaint
from nodeproof.parsers.reading import Context, Grade

STATUSES = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "not run": "skip"}
WORSE = {"pass": 0, "skip": 1, "warn": 2, "fail": 3}  # which of two decides
_DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One test on one GPU. `gpu` is DCGM's number, None where no single GPU is named.

    `status` is pass, fail, warn, skip, or error (a message of error without a test). `listed` is
    false for the summary of a test that is worse than every result it sums up. `iteration` is 0
    where the diagnostic ran once.
    """

    name: str | None
    gpu: int | None
    status: str
    category: str = ""
    complaints: tuple[Complaint, ...] = ()
    listed: bool = True
    iteration: int = 0

    @property
    def deployment(self) -> bool:
        """Looks at the host's software and loads nothing."""
        return self.category == _DEPLOYMENT or self.name == "software"

    @property
    def bad(self) -> bool:
        """Failed, or an error that no test stands before."""
        return self.status in {"fail", "error"}

    @property
    def of_the_board(self) -> bool:
        """A failure that only the hardware explains. One without a word proves nothing."""
        return any(c.of_the_board for c in self.complaints)

    def __str__(self) -> str:
        said = f": {self.complaints[0].text[:200]}" if self.complaints else ""
        return f"{self.name or 'a message'}{_on([self.gpu])}{said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the diagnostic as far as it was read.

    `excerpt` is a piece of a table, quoted without its head; `whole` is false for what breaks off.
    `unreadable` counts results whose status is no word that DCGM has. `devices` is how many GPUs
    it says it looked at. `refused` is why it did not run.
    """

    results: Sequence[Result]
    version: str | None = None
    whole: bool = True
    excerpt: bool = False
    unreadable: int = 0
    devices: int = 0
    refused: str = ""

    def fields(self) -> dict[str, Any]:
        """Plain JSON values: `tests`, `version`, `failed` (what failed, and why), `warnings`."""
        return {
            "tests": [
                {"name": r.name, "gpu": r.gpu, "status": r.status} for r in self.results if r.listed
            ],
            "version": self.version,
            "failed": [
                {
                    "name": r.name,
                    "gpu": r.gpu,
                    "says": " ".join(c.text for c in r.complaints),
                    "errors": [c.error for c in r.complaints if c.error is not None],
                    "of_the_board": r.of_the_board,
                }
                for r in self.results
                if r.bad
            ],
            "warnings": [
                {"name": r.name, "gpu": r.gpu, "status": r.status, "says": c.text}
                for r in self.results
                for c in r.complaints
                if not r.bad
            ],
        }


def judge(run: Run, context: Context) -> tuple[Grade, str]:
    """Decide what one run says of a new, idle node, with the reason in a sentence."""
    harmless: list[Result] = []
    grave: list[Result] = []
    for result in run.results:
        if result.bad:
            (harmless if _harmless(result, context) else grave).append(result)
    if grave:
        more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
        return Grade.FAIL, f"the diagnostic failed {grave[0]}{more}"
    if context.get("ecc_expected"):
        off = [r for r in run.results if any(c.ecc_off for c in r.complaints)]
        if off:
            gpus = _on([r.gpu for r in off])
            return Grade.FAIL, f"ECC is off{gpus}, where it has to be on: switch it on and reboot"
    if harmless and run.excerpt:
        return Grade.WARN, _set_aside(harmless)
    if unjudged := _unjudged(run, context, excused=bool(harmless)):
        return Grade.ERROR, unjudged
    if harmless:
        return Grade.WARN, _set_aside(harmless)
    return _good(run)


def _harmless(result: Result, context: Context) -> bool:
    """A failure that the host's setting or the kind of board explains in full."""
    if not result.complaints:
        return False
    if all(c.persistence for c in result.complaints):
        return True
    return without_nvlink(context) and all(c.links_only for c in result.complaints)


def without_nvlink(context: Context) -> bool:
    """Whether links that are down are none on this board: a PCIe card without a bridge has none."""
    expected = context.get("nvlink_expected")
    if isinstance(expected, bool):
        return not expected
    return "pcie" in str(context.get("gpu_product", "")).lower()


def _set_aside(harmless: Sequence[Result]) -> str:
    first = harmless[0]
    if all(c.persistence for r in harmless for c in r.complaints):
        gpus = _on([r.gpu if r.gpu is not None else r.complaints[0].gpu for r in harmless])
        return f"persistence mode is off{gpus}: switch it on (nvidia-smi -pm 1) and test again"
    return f"{first.name or 'a test'} fails for NVLinks that this board does not have"


def _unjudged(run: Run, context: Context, *, excused: bool) -> str:
    """Why nothing can be concluded; empty where something can."""
    if not run.results:
        if run.refused:
            return f"nothing was tested: {run.refused}"
        return "no result of any test is in the text: nothing was tested"
    status = context.get("exit_status")
    broken = ""
    if not run.whole:
        broken = "the output breaks off, and what is missing may have failed: run it again"
    elif run.refused:
        broken = f"the diagnostic did not finish: {run.refused}"
    elif run.unreadable:
        broken = f"{run.unreadable} results have a status that is not known"
    elif type(status) is int and status != 0 and not excused:
        broken = f"every test shown passed, and the command still ended with status {status}"
    return broken or _untested(run, context)


def _untested(run: Run, context: Context) -> str:
    passed = [r for r in run.results if r.status in {"pass", "warn", "fail"}]
    skipped = [r for r in run.results if r.status == "skip"]
    if not passed:
        return f"all {len(skipped)} tests were skipped: nothing was tested"
    tested = {r.name for r in passed}
    alone = [r for r in skipped if r.gpu is not None and r.name in tested]
    if alone:
        return f"{alone[0].name} was skipped{_on([r.gpu for r in alone])} and not on the others"
    loads = [r for r in run.results if not r.deployment]
    if loads and all(r.status == "skip" for r in loads):
        return f"every test that uses a GPU was skipped, {loads[0]} among them"
    empty = [r for r in run.results if any(c.no_memory for c in r.complaints)]
    if empty:
        return f"{empty[0].name} had no memory to test{_on([r.gpu for r in empty])}"
    return _left_out(run, context)


def _left_out(run: Run, context: Context) -> str:
    """Say which GPU has no result where others have one: what was not run leaves none behind."""
    told = _told(run)
    every = set[int]().union(*told.values())
    for (_, _, name), gpus in told.items():
        if missing := every - gpus:
            return f"{name or 'a test'} has no result{_on([*missing])}, which another test names"
    expected = context.get("gpus_expected")
    # What is listed beside the results counts only where these name no GPU ("Pass - All").
    seen = len(every) or run.devices
    if type(expected) is int and seen < expected:
        looked = f"it looked at {seen} GPUs" if seen else "its results name no GPU"
        return f"{looked}, and {expected} are expected"
    if seen < run.devices and all(result.status == "pass" for result in run.results):
        return f"it lists {run.devices} GPUs, and has results of {seen}"
    return ""


def _told(run: Run) -> dict[tuple[int, str, str | None], set[int]]:
    """Of which GPUs each test has results, each time, for the tests that speak of single GPUs.

    One of the host's software that names a GPU only where something is wrong with it does not.
    """
    told: dict[tuple[int, str, str | None], set[int]] = {}
    single = set()
    for result in run.results:
        if result.gpu is None:
            continue
        test = (result.iteration, result.category, result.name)
        told.setdefault(test, set()).add(result.gpu)
        if result.status == "pass" or not result.deployment:
            single.add(test)
    return {test: gpus for test, gpus in told.items() if test in single}


def _good(run: Run) -> tuple[Grade, str]:
    warned = [r for r in run.results if r.status == "warn" or (r.status == "pass" and r.complaints)]
    if warned:
        return Grade.WARN, f"every test passed, with a warning of {warned[0]}"
    skipped = [r for r in run.results if r.status == "skip"]
    if skipped:
        names = ", ".join(dict.fromkeys(str(r.name) for r in skipped))
        return Grade.WARN, f"what was tested passed; skipped, so not known: {names}"
    return Grade.PASS, f"all {len(run.results)} results are passes"


def _on(gpus: Sequence[int | None]) -> str:
    known = sorted({g for g in gpus if g is not None})
    if not known:
        return ""
    return f" on GPU{'s' if len(known) > 1 else ''} {', '.join(map(str, known))}"
