"""Answers of the training steps that were measured somewhere and are to come out again."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).with_name("golden.toml")


def answer(file: Path, key: dict[str, Any]) -> str:
    """Return the recorded answer for exactly this key, "" if there is none.

    Raises `ValueError` for a file that has two, `OSError` for one that can't be read.
    """
    wanted = {name: value for name, value in key.items() if value is not None}  # TOML has no null
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("golden", [])
    answers = [str(entry["digest"]) for entry in entries if entry["key"] == wanted]
    if len(answers) > 1:
        raise ValueError(f"{file.name} has {len(answers)} answers for one key: {wanted}")
    return answers[0] if answers else ""


def entry(result: dict[str, Any]) -> str:
    """Write a result as an entry of the file of recorded answers."""
    lines = [
        "[[golden]]",
        f"# measured {time.strftime('%Y-%m-%d')}, {result['runs']} runs alike",
        f'digest = "{result["digest"]}"',
        "[golden.key]",
    ]
    for name, value in result["key"].items():
        if value is not None:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)
