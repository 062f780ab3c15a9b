"""The manifests: every field is one that the API knows, and each pod has what it needs and no more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib

import k8s_jobs
import pytest
import yaml
from k8s_fields import model, unknown
from k8s_tree import K8S, KUSTOMIZATIONS, built, documents, everything, one

from nodeproof import cli
from nodeproof.gate.names import Names
from nodeproof.gate.settings import Settings, parse

FOREIGN = {  # kinds that are no part of Kubernetes, and the fields that theirs have below spec
    "NodePool": {"limits", "disruption", "template", "weight"},
    "NodeReadinessRule": {"nodeSelector", "conditions", "taint", "enforcementMode", "dryRun"},
    "NodeHealthCheck": {"selector", "minHealthy", "unhealthyConditions", "escalatingRemediations", "remediationTemplate", "pauseRequests"},
    "NodeConfig": {"cluster", "kubelet", "containerd", "instance"},
    "JobSet": {"replicatedJobs", "network", "failurePolicy", "ttlSecondsAfterFinished"},
    "MPIJob": {"mpiReplicaSpecs", "mpiImplementation", "slotsPerWorker", "launcherCreationPolicy", "sshAuthMountPath", "runPolicy"},
}  # fmt: skip
OBJECTS = [(f, o) for f, o in everything() if o.get("kind") != "Kustomization" and "kind" in o]
IDS = [f"{f}-{o['kind']}" for f, o in OBJECTS]
NAMES = Names()
DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


@pytest.mark.parametrize(("file", "found"), OBJECTS, ids=IDS)
def test_every_field_is_known_to_the_api(file, found):
    kind = model(found)
    if kind is None:
        assert set(found) <= {"apiVersion", "kind", "metadata", "spec"}
        assert set(found["spec"]) <= FOREIGN[found["kind"]]
    else:
        assert list(unknown(found, kind)) == []


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda d: d["spec"].update(replica=2), ".spec.replica is no field"),
        (lambda d: d["spec"].update(replicas="2"), ".spec.replicas = '2' is no int"),
        (
            lambda d: d["spec"]["template"]["spec"]["containers"][0].update(securitycontext={}),
            "is no field",
        ),
        (lambda d: d["spec"]["template"]["spec"].update(containers={}), "is no list"),
        (lambda d: d["metadata"].update(labels={"a": True}), "is no str"),
    ],
    ids=[
        "a wrong name",
        "a wrong type",
        "deep down",
        "no list",
        "a label that YAML took for a truth",
    ],
)
def test_a_field_that_the_api_does_not_know_is_found(change, wanted):
    made = one(built("."), "Deployment", "nodeproof-controller")
    change(made)
    assert any(wanted in line for line in unknown(made, model(made)))


def test_what_is_no_object_is_known_to_be_none():
    others = {f for f, o in everything() if "kind" not in o}
    assert others == {"integrations/gpu-operator/values.yaml"}


@pytest.mark.parametrize("folder", KUSTOMIZATIONS)
def test_a_kustomization_builds_to_objects_of_different_names(folder):
    made = built(folder)
    names = [
        (o["apiVersion"], o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"])
        for o in made
    ]
    assert made
    assert len(names) == len(set(names))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("folder", [".", "overlays/observe", "jobs/standalone"])
def test_kubectl_builds_the_same(folder):
    said = subprocess.run(
        ["kubectl", "kustomize", str(K8S / folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    theirs = list(yaml.safe_load_all(said.stdout))

    def plain(objects):
        """Without the digest that a generated name ends in."""
        text = json.dumps(
            sorted(objects, key=lambda o: (o["kind"], o["metadata"]["name"])), sort_keys=True
        )
        return re.sub(r"nodeproof-settings-[a-z0-9]{10}", "nodeproof-settings", text)

    assert plain(theirs) == plain(built(folder))


def test_every_file_is_part_of_a_kustomization_or_stands_by_itself():
    listed = set()
    for folder in KUSTOMIZATIONS:
        [told] = documents(K8S / folder / "kustomization.yaml")
        listed |= {
            str((K8S / folder / r).relative_to(K8S))
            for r in told["resources"]
            if r.endswith(".yaml")
        }
    files = {str(p.relative_to(K8S)) for p in K8S.rglob("*.yaml") if p.name != "kustomization.yaml"}
    alone = {f for f in files if f.startswith("integrations/")} | set(k8s_jobs.files())
    assert files == {f.removeprefix("./") for f in listed} | alone


# --- pods ---------------------------------------------------------------------------------------


def pods():
    for file, found in OBJECTS:
        if found["kind"] in {"Deployment", "Job", "DaemonSet"}:
            yield file, found["spec"]["template"]["spec"]


PODS = [pytest.param(p, id=f) for f, p in pods()]
TESTS = [p for p in PODS if str(p.id).startswith("jobs/")]


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_is_bounded(pod):
    assert all(DIGEST.fullmatch(c["image"]) for c in containers(pod))
    assert pod["enableServiceLinks"] is False
    assert not {"hostPID", "hostIPC", "hostNetwork"} & set(pod)
    for container in containers(pod):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert set(security["capabilities"].get("add", [])) <= {"IPC_LOCK", "SYSLOG"}
        assert "privileged" not in security
        assert container["resources"]["requests"]["memory"]


@pytest.mark.parametrize("pod", TESTS)
def test_what_touches_the_devices_has_no_token(pod):
    assert pod["automountServiceAccountToken"] is False
    tokens = {v["name"] for v in pod["volumes"] if "projected" in v or "secret" in v}
    for container in containers(pod):
        mounted = {m["name"] for m in container["volumeMounts"]}
        if container["name"] == "gate":
            assert mounted == {"results", "token"}
            assert container["resources"].get("limits", {}) == {}
            assert container["securityContext"]["runAsNonRoot"] is True
            assert all(m["readOnly"] for m in container["volumeMounts"])
        else:
            assert not mounted & tokens


@pytest.mark.parametrize("pod", TESTS)
def test_a_test_pod_passes_the_taints_of_the_gate_and_the_gpu_and_no_others(pod):
    assert pod["tolerations"] == [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        for key in (
            NAMES.pending,
            NAMES.quarantined,
            "nvidia.com/gpu",
            "node.kubernetes.io/unschedulable",
        )
    ]


@pytest.mark.parametrize("pod", TESTS)
def test_a_test_pod_reads_the_host_and_writes_nothing_there(pod):
    host = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert set(host.values()) in ({"/proc", "/sys", "/var/log"}, set())  # of a group: nothing
    for container in containers(pod):
        assert all(m.get("readOnly") for m in container["volumeMounts"] if m["name"] in host)


def test_taints_of_the_site_are_passed_too():
    settings = Settings(
        image=k8s_jobs.IMAGE, tolerate={"dedicated": "NoExecute", NAMES.pending: "NoExecute"}
    )
    pod = k8s_jobs.built_with(settings)["spec"]["template"]["spec"]
    effects = {t["key"]: t["effect"] for t in pod["tolerations"]}
    assert effects["dedicated"] == "NoExecute"
    assert effects[NAMES.pending] == "NoSchedule"  # ours are passed as they are laid on


def test_the_controller_has_no_device_and_writes_nowhere():
    pod = one(built("."), "Deployment", "nodeproof-controller")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "add" not in container["securityContext"]["capabilities"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not any("hostPath" in v for v in pod["volumes"])
    assert not any("nvidia" in k for k in container["resources"]["limits"])
    assert "tolerations" not in pod
    port = container["args"][container["args"].index("--port") + 1]
    assert {p["containerPort"] for p in container["ports"]} == {int(port)}


# --- what has to agree ----------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(k8s_jobs.files()))
def test_the_jobs_are_what_the_code_builds(file):
    assert (K8S / file).read_text() == k8s_jobs.files()[file], "run python tests/k8s_jobs.py"


def test_the_settings_are_good_and_every_one_is_told():
    text = (K8S / "controller/settings.toml").read_text()
    settings = parse(text)
    container = one(built("."), "Deployment", "nodeproof-controller")["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert settings.image == container["image"]
    told = {line.lstrip("# ").partition(" ")[0] for line in text.splitlines() if " = " in line}
    told |= {
        line.strip("# []") for line in text.splitlines() if re.fullmatch(r"(# )?\[\w+\]", line)
    }
    assert set(Settings.__dataclass_fields__) - told == set()


def test_the_defaults_that_the_settings_tell_are_the_defaults():
    text = (K8S / "controller/settings.toml").read_text()
    shown = re.findall(r"^# (\w+ = (?:\"[^\"]*\"|[\w.]+))", text, re.MULTILINE)
    assert len(shown) > 15
    for line in shown:
        [(key, value)] = tomllib.loads(line).items()
        known = getattr(Settings(image=""), key, None)
        known = getattr(NAMES, key) if known is None else known
        if key != "startup":  # shown by an example
            assert known == value, key


def test_whose_pods_are_whose_is_told_by_labels():
    """The controller takes every pod of the first name for a test's."""
    found = built(".")
    deployment = one(found, "Deployment", "nodeproof-controller")
    label = {"app.kubernetes.io/name": "nodeproof-controller"}
    assert deployment["spec"]["template"]["metadata"]["labels"] == label
    assert deployment["spec"]["selector"]["matchLabels"] == label
    assert (
        one(found, "PodDisruptionBudget", "nodeproof-controller")["spec"]["selector"]["matchLabels"]
        == label
    )
    jobs = [o for f, o in OBJECTS if f.startswith("jobs/") and o["kind"] == "Job"]
    assert {
        o["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] for o in jobs
    } == {
        "nodeproof",
        "nodeproof-group",
        "nodeproof-standalone",
        "nodeproof-collectives",
    }


def test_test_pods_reach_nobody_and_the_controller_the_api_alone():
    policies = {
        o["metadata"]["name"]: o["spec"] for o in built(".") if o["kind"] == "NetworkPolicy"
    }
    assert set(policies) == {"nodeproof-nothing", "nodeproof-controller", "nodeproof-group"}
    nothing = policies["nodeproof-nothing"]
    assert nothing == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    other = policies["nodeproof-controller"]
    assert other["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "nodeproof-controller"}
    assert {p["port"] for rule in other["egress"] for p in rule["ports"]} == {443, 6443}


GROUP_POD = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "nodeproof-group"}}}


def test_pods_of_groups_reach_each_other_and_dns_and_nobody_else():
    spec = one(built("."), "NetworkPolicy", "nodeproof-group")["spec"]
    assert spec["podSelector"] == GROUP_POD["podSelector"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"from": [GROUP_POD]}]
    [among, dns] = spec["egress"]
    assert among == {"to": [GROUP_POD]}
    assert {(p["protocol"], p["port"]) for p in dns["ports"]} == {("UDP", 53), ("TCP", 53)}
    [resolver] = dns["to"]
    assert resolver["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
    assert set(resolver["namespaceSelector"]["matchLabels"].values()) == {"kube-system"}


def test_a_member_of_a_group_finds_its_head_by_the_service_that_ships():
    [job] = documents(K8S / "jobs/group.yaml")
    service = one(built("."), "Service", "nodeproof-group")
    template = job["spec"]["template"]
    assert service["metadata"]["namespace"] == job["metadata"]["namespace"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    [port] = service["spec"]["ports"]
    words = template["spec"]["containers"][0]["args"]
    head = f"{job['metadata']['name']}-0.{service['metadata']['name']}:{port['port']}"
    assert words[words.index("--head") + 1] == head
    assert template["metadata"]["labels"].items() <= job["metadata"]["labels"].items()


def test_each_pod_of_a_group_is_on_a_node_of_its_own_and_fails_alone():
    spec = documents(K8S / "jobs/group.yaml")[0]["spec"]
    affinity = spec["template"]["spec"]["affinity"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = affinity["nodeAffinity"][required]["nodeSelectorTerms"]
    assert spec["completions"] == spec["parallelism"] == len(terms) == 4
    assert [len(t["matchFields"]) for t in terms] == [1] * 4
    [apart] = affinity["podAntiAffinity"][required]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert (spec["completionMode"], spec["backoffLimitPerIndex"]) == ("Indexed", 0)
    assert not {"backoffLimit", "maxFailedIndexes", "successPolicy"} & set(spec)
    assert {r["action"] for r in spec["podFailurePolicy"]["rules"]} == {"FailIndex"}
    [container] = spec["template"]["spec"]["containers"]
    limits, requests = (container["resources"][part] for part in ("limits", "requests"))
    # A device, memory that is taken whole: what is given is what is kept for it.
    assert {k: v for k, v in requests.items() if k != "cpu"} == limits
    deadline = int(container["args"][container["args"].index("--deadline") + 1])
    assert deadline < spec["activeDeadlineSeconds"]


def test_the_namespace_may_do_what_its_pods_need():
    labels = one(built("."), "Namespace", NAMES.namespace)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert labels["nodeproof.dev/may-tolerate"] == "true"


def test_node_problem_detector_gives_up_after_we_do():
    told = json.loads((K8S / "integrations/node-problem-detector/nodeproof.json").read_text())
    [rule] = told["rules"]
    ours = float(rule["args"][rule["args"].index("--deadline") + 1])
    seconds = [
        ours,
        float(rule["timeout"].rstrip("s")),
        float(told["pluginConfig"]["timeout"].rstrip("s")),
    ]
    assert seconds == sorted(set(seconds))
    assert seconds[-1] < float(told["pluginConfig"]["invoke_interval"].rstrip("s"))
    assert told["pluginConfig"]["max_output_length"] == 80
    assert {c["type"] for c in told["conditions"]} == {rule["condition"]}


def test_what_sets_a_node_up_passes_its_taints():
    [values] = documents(K8S / "integrations/gpu-operator/values.yaml")
    for rows in (
        values["daemonsets"]["tolerations"],
        values["node-feature-discovery"]["worker"]["tolerations"],
    ):
        assert {NAMES.pending, NAMES.quarantined} <= {t["key"] for t in rows}


def test_a_pool_starts_its_nodes_held_and_never_quarantined():
    [pool] = documents(K8S / "integrations/karpenter/nodepool.yaml")
    spec = pool["spec"]["template"]["spec"]
    assert [t["key"] for t in spec["startupTaints"]] == [NAMES.pending]
    assert not {NAMES.pending, NAMES.quarantined} & {t["key"] for t in spec["taints"]}


def commands():
    """Every command line of ours that stands in the manifests."""
    for file, pod in pods():
        for container in containers(pod):
            yield file, container["args"]
    told = json.loads((K8S / "integrations/node-problem-detector/nodeproof.json").read_text())
    yield "node-problem-detector", told["rules"][0]["args"]


@pytest.mark.parametrize("words", [pytest.param(w, id=f"{f}-{w[0]}") for f, w in commands()])
def test_a_command_is_one_that_we_have(words):
    plain = [w.replace("$(THIS_NODE)", "gpu-a17") for w in words]
    assert cli._parser().parse_args(plain).module in {plain[0], "_".join(plain[:2])}
