"""Admission by our policies, by the CEL runtime of cel-expr-python: which of them refuse a request.

What the server adds to CEL is in neither: typed checks, costs, and what it leaves out of its
variables. So a policy that passes here is tried on a server besides.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

Object = dict[str, Any]

_DYN = cel.Type.DYN
_ENV = cel.NewEnv(
    variables=dict.fromkeys(("object", "oldObject", "request", "variables"), _DYN),
    extensions=[ext_optional.ExtOptional()],
)


@cache
def _compiled(expression: str) -> Any:
    return _ENV.compile(expression)


def _value(expression: str, data: Mapping[str, Any]) -> Any:
    return _compiled(expression).eval(data=data).plain_value()


class Admission:
    """The policies of a set of manifests that have a binding which denies."""

    def __init__(self, objects: Iterable[Object]) -> None:
        found = list(objects)
        bound = {
            o["spec"]["policyName"]
            for o in found
            if o["kind"] == "ValidatingAdmissionPolicyBinding"
            and "Deny" in o["spec"]["validationActions"]
        }
        self.policies = [
            o
            for o in found
            if o["kind"] == "ValidatingAdmissionPolicy" and o["metadata"]["name"] in bound
        ]

    def refused(
        self,
        user: str,
        old: Object | None,
        new: Object | None,
        *,
        sub: str = "",
        groups: Iterable[str] = (),
        node: str | None = None,
        labels: Mapping[str, str] | None = None,
        resource: str = "nodes",
    ) -> list[str]:
        """Which policies refuse it and why, as `policy: message`; empty where it is admitted.

        `node` is the claim of the token, `labels` are those of the pod's namespace.
        """
        operation = "CREATE" if old is None else "DELETE" if new is None else "UPDATE"
        info: Object = {"username": user, "groups": ["system:authenticated", *groups]}
        if node is not None:
            info["extra"] = {"authentication.kubernetes.io/node-name": [node]}
        request: Object = {"operation": operation, "userInfo": info}
        if sub:
            request["subResource"] = sub
        path = f"{resource}/{sub}" if sub else resource
        said: list[str] = []
        for policy in self.policies:
            if _concerns(policy["spec"]["matchConstraints"], operation, path, labels or {}):
                said += _judged(policy, {"object": new, "oldObject": old, "request": request})
        return said


def _concerns(wanted: Object, operation: str, path: str, labels: Mapping[str, str]) -> bool:
    for term in wanted.get("namespaceSelector", {}).get("matchExpressions", []):
        met = {
            "DoesNotExist": term["key"] not in labels,
            "Exists": term["key"] in labels,
            "In": labels.get(term["key"]) in term.get("values", ()),
        }[term["operator"]]
        if not met:
            return False
    return any(
        operation in rule["operations"]
        and any(
            path == r or (r.endswith("/*") and path.startswith(r[:-1])) for r in rule["resources"]
        )
        for rule in wanted["resourceRules"]
    )


def _judged(policy: Object, given: Mapping[str, Any]) -> list[str]:
    spec, name = policy["spec"], policy["metadata"]["name"]
    data: Object = {**copy.deepcopy(dict(given)), "variables": {}}
    for condition in spec.get("matchConditions", []):
        met = _value(condition["expression"], data)
        # An error in a condition is a refusal, since failurePolicy is Fail.
        if met is not True:
            return [] if met is False else [f"{name}: {condition['name']} gives {met!r}"]
    for variable in spec.get("variables", []):
        data["variables"][variable["name"]] = _value(variable["expression"], data)
    answers = [(v, _value(v["expression"], data)) for v in spec["validations"]]
    return [
        f"{name}: {v['message']}" + ("" if answer is False else f" ({answer!r})")
        for v, answer in answers
        if answer is not True
    ]
