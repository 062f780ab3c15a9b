"""Writes to nodes and pods: by whom, from what, which change, and what the policies have to say."""

from __future__ import annotations

import copy

from nodeproof.gate.names import Names

NAMES = Names()
GATE = "system:serviceaccount:nodeproof-system:nodeproof-controller"
ALONE = "system:serviceaccount:nodeproof-system:nodeproof-standalone"
KUBELET = "system:node:n1"
READINESS = "system:serviceaccount:nrr-system:nrr-controller-manager"

TAINT = {"key": NAMES.pending, "value": "true", "effect": "NoSchedule"}
SHUT = {"key": NAMES.quarantined, "value": "true", "effect": "NoSchedule"}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}
FOREIGN = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
ACCEPTED = {
    "type": NAMES.accepted,
    "status": "True",
    "reason": "AllChecksPassed",
    "message": "boot B1; 57 checks passed",
}


def node(**more):
    made = {
        "metadata": {
            "name": "n1",
            "labels": {"a": "b"},
            "annotations": {"x": "y"},
            "finalizers": ["karpenter.sh/termination"],
        },
        "spec": {"providerID": "aws:///x", "taints": [TAINT, FOREIGN]},
        "status": {
            "capacity": {"nvidia.com/gpu": "8"},
            "nodeInfo": {"bootID": "B1", "kernelVersion": "6.12"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }
    for part, changes in more.items():
        made[part] = {**made[part], **changes}
    return made


def but(how, base=None):
    made = copy.deepcopy(base or node())
    how(made)
    return made


def says(**other):
    """A change that puts our condition there, or something like it."""

    def change(made):
        kept = [c for c in made["status"]["conditions"] if c["type"] != NAMES.accepted]
        made["status"]["conditions"] = [*kept, {**ACCEPTED, **other}]

    return change


def drops(*keys):
    def change(made):
        made["spec"]["taints"] = [t for t in made["spec"]["taints"] if t["key"] not in keys]

    return change


def stamps(boot="B1"):
    return lambda made: made["metadata"]["annotations"].update({NAMES.accepted_boot: boot})


def both(*changes):
    def change(made):
        for how in changes:
            how(made)

    return change


def sets(part, **values):
    return lambda made: made[part].update(copy.deepcopy(values))


def words(**said):
    return lambda made: made["metadata"]["annotations"].update(
        {getattr(NAMES, k): v for k, v in said.items()}
    )


PROVED = but(says())
ASKED = but(words(requalify="w"))
ANSWERED = but(words(requalify="w", requalified="w"))
BOTH_TAINTS = but(lambda made: made["spec"]["taints"].append(SHUT), PROVED)
RELEASE = both(drops(NAMES.pending, NAMES.quarantined), stamps())

# Who, from what, by which change, through which subresource, and what the refusal says ("" for none).
STATUS = [
    ("the gate accepts", GATE, node(), says(), ""),
    ("the gate rejects", GATE, node(), says(status="False", reason="HardwareCondemned"), ""),
    ("the gate is undecided", GATE, PROVED, says(status="Unknown", reason="Rebooted"), ""),
    ("the boot is not known", GATE, node(), says(status="Unknown", reason="BootUnknown", message="boot unknown; x"), ""),
    ("accepts another boot", GATE, node(), says(message="boot B0; 57"), "of the boot that the node is in"),
    ("a longer boot id", GATE, node(), says(message="boot B12; 57"), "of the boot that the node is in"),
    ("accepts no boot", GATE, but(lambda n: n["status"]["nodeInfo"].update(bootID="")), says(message="boot ; 57"), "of the boot that the node is in"),
    ("accepts for another reason", GATE, node(), says(reason="Waived"), "with AllChecksPassed"),
    ("a reason of several words", GATE, node(), says(status="False", reason="all good!"), "reason is one word"),
    ("no reason", GATE, node(), says(status="False", reason=""), "reason is one word"),
    ("says no boot", GATE, node(), says(status="False", message="57 checks"), "for which boot"),
    ("a message too long", GATE, node(), says(status="False", message="boot B1; " + "x" * 1024), "1024"),
    ("a status that is none", GATE, node(), says(status="Yes"), "reason is one word"),
    ("deletes the condition", GATE, PROVED, lambda n: n["status"].update(conditions=n["status"]["conditions"][:1]), "never deleted"),
    ("says it twice", GATE, node(), lambda n: n["status"]["conditions"].extend([ACCEPTED, {**ACCEPTED, "status": "False"}]), "written once"),
    ("flips Ready", GATE, PROVED, lambda n: n["status"]["conditions"][0].update(status="False"), "conditions of others"),
    ("drops Ready", GATE, PROVED, lambda n: n["status"]["conditions"].pop(0), "conditions of others"),
    ("smuggles a label", GATE, PROVED, lambda n: n["metadata"]["labels"].update(z="1"), "must not carry metadata"),
    ("smuggles an annotation", GATE, PROVED, stamps(), "must not carry metadata"),
    ("smuggles a finalizer", GATE, PROVED, lambda n: n["metadata"].update(finalizers=[]), "must not carry metadata"),
    ("smuggles an owner", GATE, PROVED, lambda n: n["metadata"].update(ownerReferences=[OWNER]), "must not carry metadata"),
    ("edits capacity", GATE, PROVED, lambda n: n["status"]["capacity"].update({"nvidia.com/gpu": "9"}), "nothing of the status"),
    ("edits the boot id", GATE, PROVED, lambda n: n["status"]["nodeInfo"].update(bootID="B2"), "nothing of the status"),
    ("a kubelet beats", KUBELET, PROVED, lambda n: n["status"]["conditions"][0].update(lastHeartbeatTime="2026-01-01T00:00:00Z"), ""),
    ("a kubelet after a reboot", KUBELET, PROVED, lambda n: n["status"]["nodeInfo"].update(bootID="B2"), ""),
    ("a kubelet forges an accept", KUBELET, node(), says(), "only the gate writes"),
    ("a kubelet changes a word of it", KUBELET, PROVED, says(message="boot B2; 57 checks passed"), "only the gate writes"),
    ("a kubelet stamps by its status", KUBELET, PROVED, stamps(), "only the gate stamps"),
    ("an agent drops it", "system:serviceaccount:kube-system:agent", PROVED, lambda n: n["status"]["conditions"].pop(), "only the gate writes"),
    ("an administrator forges one", "admin", node(), says(), "only the gate writes"),
    ("the standalone identity, where it is not installed", ALONE, node(), says(), "only the gate writes"),
]  # fmt: skip

MAIN = [
    ("holds", GATE, but(drops(NAMES.pending)), lambda n: n["spec"]["taints"].append(TAINT), ""),
    ("holds where there are no taints", GATE, but(lambda n: n["spec"].pop("taints")), lambda n: n["spec"].update(taints=[TAINT]), ""),
    ("quarantines", GATE, node(), lambda n: n["spec"]["taints"].append(SHUT), ""),
    ("quarantines by NoExecute", GATE, node(), lambda n: n["spec"]["taints"].append({**SHUT, "effect": "NoExecute"}), "taints of others"),
    ("takes a foreign taint", GATE, node(), drops("nvidia.com/gpu"), "taints of others"),
    ("changes a foreign taint", GATE, node(), lambda n: n["spec"]["taints"][1].update(value="x"), "taints of others"),
    ("takes our key in another effect", GATE, but(lambda n: n["spec"]["taints"].append({**TAINT, "effect": "NoExecute"})), lambda n: n["spec"]["taints"].pop(), "taints of others"),
    ("cordons", GATE, node(), sets("spec", unschedulable=True), "nothing of the spec"),
    ("changes the provider", GATE, node(), sets("spec", providerID="aws:///y"), "nothing of the spec"),
    ("labels, even ours", GATE, node(), lambda n: n["metadata"]["labels"].update({"nodeproof.dev/x": "1"}), "labels, finalizers"),
    ("changes a label", GATE, node(), lambda n: n["metadata"]["labels"].update(a="c"), "labels, finalizers"),
    ("drops a finalizer", GATE, node(), lambda n: n["metadata"].update(finalizers=[]), "labels, finalizers"),
    ("drops an annotation", GATE, node(), lambda n: n["metadata"]["annotations"].clear(), "annotations of others"),
    ("asks for a test of a suspect", GATE, node(), words(requalify="w", suspected="w"), ""),
    ("says with which proof it waits", GATE, node(), words(awaits="{}"), ""),
    ("stamps what is not its own", GATE, node(), lambda n: n["metadata"]["annotations"].update({"nodeproof.dev/other": "w"}), "annotations of others"),
    ("answers a request", GATE, node(), lambda n: n["metadata"]["annotations"].update({NAMES.requalified: "w"}), ""),
    ("lifts", GATE, PROVED, RELEASE, ""),
    ("lifts both", GATE, BOTH_TAINTS, RELEASE, ""),
    ("lifts pending and leaves quarantined", GATE, BOTH_TAINTS, both(drops(NAMES.pending), stamps()), "leave together"),
    ("lifts quarantined and leaves pending", GATE, BOTH_TAINTS, both(drops(NAMES.quarantined), stamps()), "leave together"),
    ("lifts without a condition", GATE, node(), RELEASE, "not accepted for the boot"),
    ("lifts on Unknown", GATE, but(says(status="Unknown")), RELEASE, "not accepted for the boot"),
    ("lifts on False", GATE, but(says(status="False")), RELEASE, "not accepted for the boot"),
    ("lifts for another reason", GATE, but(says(reason="Waived")), RELEASE, "not accepted for the boot"),
    ("lifts on an earlier boot's accept", GATE, but(says(message="boot B0; 57")), RELEASE, "not accepted for the boot"),
    ("lifts with an earlier boot's stamp", GATE, PROVED, both(drops(NAMES.pending), stamps("B0")), "stamp the boot"),
    ("lifts without a stamp", GATE, PROVED, drops(NAMES.pending), "stamp the boot"),
    ("lifts where no boot is known", GATE, but(both(says(message="boot ; 57"), lambda n: n["status"]["nodeInfo"].update(bootID=""))), both(drops(NAMES.pending), stamps("")), "not accepted for the boot"),
    ("weakens to PreferNoSchedule", GATE, PROVED, lambda n: n["spec"]["taints"][0].update(effect="PreferNoSchedule"), "taints of others"),
    ("an administrator lifts", "admin", PROVED, RELEASE, "only the gate lifts"),
    ("an administrator lifts what was accepted and is held again", "admin", but(stamps(), PROVED), drops(NAMES.pending), "only the gate lifts"),
    ("an administrator weakens", "admin", PROVED, lambda n: n["spec"]["taints"][0].update(effect="PreferNoSchedule"), "only the gate lifts"),
    ("an administrator takes the quarantine", "admin", BOTH_TAINTS, drops(NAMES.quarantined), "only the gate lifts"),
    ("somebody replaces all taints", "admin", node(), sets("spec", taints=[FOREIGN]), "only the gate lifts"),
    ("somebody drops the list", "admin", node(), lambda n: n["spec"].pop("taints"), "only the gate lifts"),
    ("somebody else's label", "admin", node(), lambda n: n["metadata"]["labels"].update(q="1"), ""),
    ("somebody else's taint", "admin", node(), lambda n: n["spec"]["taints"].append({"key": "z", "effect": "NoSchedule"}), ""),
    ("somebody takes another taint", "admin", node(), drops("nvidia.com/gpu"), ""),
    ("somebody holds a node", "admin", but(drops(NAMES.pending)), lambda n: n["spec"]["taints"].append(TAINT), ""),
    ("another value of the same taint", "admin", node(), lambda n: n["spec"]["taints"][0].pop("value"), ""),
    ("says for what it is held", GATE, node(), lambda n: n["metadata"]["annotations"].update({NAMES.held_for: "x"}), ""),
    ("somebody wipes for what it is held", "admin", but(lambda n: n["metadata"]["annotations"].update({NAMES.held_for: "x"})), lambda n: n["metadata"]["annotations"].pop(NAMES.held_for), "only the gate stamps"),
    ("a kubelet withdraws a request", KUBELET, ASKED, lambda n: n["metadata"]["annotations"].pop(NAMES.requalify), "stands until it is answered"),
    ("a kubelet empties a request", KUBELET, ASKED, words(requalify=""), "stands until it is answered"),
    ("somebody goes back to an answered word", "admin", but(words(requalify="v", requalified="w")), words(requalify="w"), "stands until it is answered"),
    ("somebody asks by another word", "admin", ASKED, words(requalify="x"), ""),
    ("somebody clears an answered word", "admin", ANSWERED, lambda n: n["metadata"]["annotations"].pop(NAMES.requalify), ""),
    ("somebody asks for a test", "admin", node(), lambda n: n["metadata"]["annotations"].update({NAMES.requalify: "w"}), ""),
    ("a kubelet answers a request", KUBELET, node(), lambda n: n["metadata"]["annotations"].update({NAMES.requalified: "w"}), "only the gate stamps"),
    ("a kubelet calls a suspicion tested", KUBELET, node(), words(suspected="w"), "only the gate stamps"),
    ("a kubelet says with which proof it waits", KUBELET, node(), words(awaits="{}"), "only the gate stamps"),
    ("somebody stamps a boot", "admin", PROVED, stamps(), "only the gate stamps"),
    ("somebody takes a stamp", "admin", but(stamps()), lambda n: n["metadata"]["annotations"].pop(NAMES.accepted_boot), "only the gate stamps"),
    ("somebody takes every annotation", "admin", but(stamps()), lambda n: n["metadata"].pop("annotations"), "only the gate stamps"),
]  # fmt: skip


def pod(tolerations, *, limits=None, **spec):
    container = {"name": "c", "resources": {"limits": limits}} if limits else {"name": "c"}
    return {"spec": {"containers": [container], "tolerations": tolerations, **spec}}


GPUS = {"nvidia.com/gpu": "1"}
ALL = [{"operator": "Exists"}]
OURS = [{"key": NAMES.pending, "operator": "Exists", "effect": "NoSchedule"}]
PODS = [
    ("a blanket toleration", pod(ALL, limits=GPUS), "may not tolerate"),
    ("one of our taint", pod(OURS, limits=GPUS), "may not tolerate"),
    ("one of the quarantine", pod([{"key": NAMES.quarantined}], limits=GPUS), "may not tolerate"),
    ("one of every effect of our taint", pod([{"key": NAMES.pending}], limits=GPUS), "may not tolerate"),
    ("one of the other startup key", pod([{"key": "startup-taint.cluster-autoscaler.kubernetes.io/nodeproof-pending"}], limits=GPUS), "may not tolerate"),
    ("a slice of a GPU", pod(ALL, limits={"nvidia.com/mig-1g.10gb": "1"}), "may not tolerate"),
    ("in an init container", pod(ALL, initContainers=[{"name": "i", "resources": {"limits": GPUS}}]), "may not tolerate"),
    ("a claim", pod(OURS, resourceClaims=[{"name": "g"}]), "may not tolerate"),
    ("an ordinary toleration", pod([{"key": "nvidia.com/gpu", "operator": "Exists"}], limits=GPUS), ""),
    ("everything that is NoExecute", pod([{"operator": "Exists", "effect": "NoExecute"}], limits=GPUS), ""),
    ("none at all", {"spec": {"containers": [{"name": "c", "resources": {"limits": GPUS}}]}}, ""),
    ("no GPU", pod(ALL), ""),
    ("a claim and no toleration", pod([], resourceClaims=[{"name": "g"}]), ""),
]  # fmt: skip
