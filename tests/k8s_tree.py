"""The manifests of k8s/ as a cluster gets them: kustomizations resolved, every document parsed."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

K8S = Path(__file__).parent.parent / "k8s"
KUSTOMIZATIONS = sorted(str(p.parent.relative_to(K8S)) for p in K8S.rglob("kustomization.yaml"))

Object = dict[str, Any]


def documents(path: Path) -> list[Object]:
    return copy.deepcopy(_read(path))


@cache
def _read(path: Path) -> list[Object]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d is not None]


def built(folder: str) -> list[Object]:
    """What `kubectl kustomize` makes of a folder, for the parts of a kustomization that we use."""
    return _build((K8S / folder).resolve())


def _build(folder: Path) -> list[Object]:
    [told] = documents(folder / "kustomization.yaml")
    known = {"apiVersion", "kind", "resources", "patches", "configMapGenerator"}
    assert set(told) <= known, f"{folder}: the resolver does not know {set(told) - known}"
    made: list[Object] = []
    for name in told.get("resources") or []:
        path = (folder / name).resolve()
        made += _build(path) if path.is_dir() else documents(path)
    for generator in told.get("configMapGenerator") or []:
        data = {name: (folder / name).read_text() for name in generator["files"]}
        metadata = {"name": generator["name"], "namespace": generator["namespace"]}
        made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for patch in told.get("patches") or []:
        target = patch["target"]
        met = [o for o in made if _meant(o, target)]
        assert met, f"{folder}: the patch of {target} meets nothing"
        for found in met:
            ops = yaml.safe_load(patch["patch"])
            changed = jsonpatch.apply_patch(copy.deepcopy(found), ops)
            made[made.index(found)] = changed
    return made


def _meant(found: Object, target: dict[str, str]) -> bool:
    name = target.get("name", ".*")
    return found["kind"] == target["kind"] and bool(re.fullmatch(name, found["metadata"]["name"]))


def everything() -> Iterator[tuple[str, Object]]:
    """Every object in every YAML file of k8s/, and the file that it stands in."""
    for path in sorted(K8S.rglob("*.yaml")):
        for found in documents(path):
            yield str(path.relative_to(K8S)), found


def one(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found
