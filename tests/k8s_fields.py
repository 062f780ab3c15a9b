"""Whether an object has only fields that the API knows: walks the models of the official client.

Those of client 37 are the API of Kubernetes 1.37.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kubernetes import client

_PLAIN = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "datetime": str,
    "bytes": str,
    "object": object,
}


def model(found: dict[str, Any]) -> type | None:
    """The client's model of an object; `None` for a kind that is no part of Kubernetes."""
    group, _, version = found["apiVersion"].rpartition("/")
    if "." in group and not group.endswith(".k8s.io"):
        return None
    return getattr(client, f"{version[0].upper()}{version[1:]}{found['kind']}", None)


def unknown(found: Any, kind: str | type, path: str = "") -> Iterator[str]:
    """Each field that the model does not have, and each value of another type than it says."""
    if isinstance(kind, str) and (inner := re.fullmatch(r"[Ll]ist\[(.+)\]", kind)):
        if isinstance(found, list):
            for number, item in enumerate(found):
                yield from unknown(item, inner[1], f"{path}[{number}]")
        else:
            yield f"{path} is no list"
    elif isinstance(kind, str) and (inner := re.fullmatch(r"[Dd]ict\Wstr, (.+)\W", kind)):
        if isinstance(found, dict):
            for key, item in found.items():
                yield from unknown(item, inner[1], f"{path}.{key}")
        else:
            yield f"{path} is no map"
    elif isinstance(kind, str) and kind in _PLAIN:
        wrong = kind in {"int", "float"} and isinstance(found, bool)
        if wrong or (not isinstance(found, _PLAIN[kind]) and not _port(found, path)):
            yield f"{path} = {found!r} is no {kind}"
    else:
        yield from _unknown_below(
            found, getattr(client, kind) if isinstance(kind, str) else kind, path
        )


def _unknown_below(found: Any, described: Any, path: str) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f"{path} = {found!r} is no {described.__name__}"
        return
    names = {json: ours for ours, json in described.attribute_map.items()}
    for key, value in found.items():
        if key not in names:
            yield f"{path}.{key} is no field of {described.__name__}"
        else:
            yield from unknown(value, described.openapi_types[names[key]], f"{path}.{key}")


def _port(found: Any, path: str) -> bool:
    """Ports, by name or number, are objects or texts to the models."""
    return isinstance(found, int) and not isinstance(found, bool) and path.endswith(".port")
