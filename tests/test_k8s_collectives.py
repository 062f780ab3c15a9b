"""The Jobs for a group of nodes: tried once, bounded, found by name, heard by their own pods alone.

That each field of Service, Job and NetworkPolicy is known to the API is tested with all others.
JobSet and MPIJob are no part of it: theirs are held against lists, and the pods below them as ever.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess

import pytest
import yaml
from k8s_fields import unknown
from k8s_policies import Admission
from k8s_shapes import SHAPES, SHIPPED
from k8s_tree import K8S, built, documents, one

from nodeproof import cli, spec
from nodeproof.cli import fabric_run, options
from nodeproof.fabric import campaign, head, member, wire
from nodeproof.gate.names import Names

NAME = "nodeproof-collectives"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": NAME}
FOLDER = "jobs/collectives"
SPACE = one(built("namespace"), "Namespace", Names().namespace)["metadata"]
HOME = {**SPACE["labels"], "kubernetes.io/metadata.name": SPACE["name"]}
NODES = 4

INDEXED = built(FOLDER)
JOBSET = built(f"{FOLDER}/jobset")
MPIJOB = built(f"{FOLDER}/mpijob")
RULES = Admission(built("."))
RULES_WITH_MPI = Admission(built(f"{FOLDER}/mpijob/policies"))

JOB = one(INDEXED, "Job", NAME)["spec"]
[_MEMBERS] = one(JOBSET, "JobSet", NAME)["spec"]["replicatedJobs"]
JOB_OF_SET = _MEMBERS["template"]["spec"]
MPI = one(MPIJOB, "MPIJob", NAME)["spec"]
LAUNCHER, WORKER = (MPI["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker"))

TEMPLATES = {
    "indexed": JOB["template"],
    "jobset": JOB_OF_SET["template"],
    "mpijob launcher": LAUNCHER["template"],
    "mpijob worker": WORKER["template"],
}
MEMBERS = {name: t for name, t in TEMPLATES.items() if name != "mpijob launcher"}
RUNS = {name: t for name, t in TEMPLATES.items() if name != "mpijob worker"}

every_pod = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
every_member = pytest.mark.parametrize("template", MEMBERS.values(), ids=MEMBERS)
every_run = pytest.mark.parametrize("template", RUNS.values(), ids=RUNS)
every_job = pytest.mark.parametrize("job", [JOB, JOB_OF_SET], ids=["indexed", "jobset"])


def container(template):
    [found] = template["spec"]["containers"]
    return found


def option(template, name):
    words = container(template)["args"]
    return words[words.index(name) + 1]


# --- known to their APIs --------------------------------------------------------------------------


@every_pod
def test_every_field_of_a_pod_is_known_to_the_api(template):
    assert list(unknown(template, "V1PodTemplateSpec")) == []


def test_every_field_of_the_job_in_a_jobset_is_known_to_the_api():
    assert list(unknown(JOB_OF_SET, "V1JobSpec")) == []


def test_every_field_of_a_jobset_is_one_of_v1alpha2():
    """Fields from kubernetes-sigs/jobset 0336a8f, api/jobset/v1alpha2/jobset_types.go."""
    found = one(JOBSET, "JobSet", NAME)
    assert found["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    own = found["spec"]
    assert set(own) == {"ttlSecondsAfterFinished", "network", "failurePolicy", "replicatedJobs"}
    assert own["network"] == {
        "enableDNSHostnames": True,
        "subdomain": NAME,
        "publishNotReadyAddresses": True,
    }
    assert own["failurePolicy"] == {"maxRestarts": 0}
    assert {k: v for k, v in _MEMBERS.items() if k != "template"} == {
        "name": "members",
        "replicas": 1,
    }


def test_every_field_of_an_mpijob_is_one_of_v2beta1():
    """Fields from kubeflow/mpi-operator caa3c47, pkg/apis/kubeflow/v2beta1/types.go."""
    assert one(MPIJOB, "MPIJob", NAME)["apiVersion"] == "kubeflow.org/v2beta1"
    assert {k: v for k, v in MPI.items() if k not in {"mpiReplicaSpecs", "runPolicy"}} == {
        "mpiImplementation": "OpenMPI",
        "slotsPerWorker": 1,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "sshAuthMountPath": "/home/nodeproof/.ssh",
    }
    assert MPI["runPolicy"] == {
        "backoffLimit": 0,
        "activeDeadlineSeconds": JOB["activeDeadlineSeconds"],
        "ttlSecondsAfterFinished": 86400,
        "cleanPodPolicy": "Running",
    }
    for replica in (LAUNCHER, WORKER):
        assert set(replica) == {"replicas", "restartPolicy", "template"}
        assert replica["restartPolicy"] == "Never"


# --- one try, all of them, each on its node -------------------------------------------------------


@every_job
def test_every_rank_is_tried_once_and_none_takes_the_others_along(job):
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == NODES
    assert job["backoffLimitPerIndex"] == 0
    assert not {"backoffLimit", "maxFailedIndexes", "successPolicy"} & set(job)
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["podReplacementPolicy"] == "Failed"
    [disrupted, failed] = job["podFailurePolicy"]["rules"]
    assert {disrupted["action"], failed["action"]} == {"FailIndex"}
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert failed["onExitCodes"] == {
        "containerName": container(job["template"])["name"],
        "operator": "NotIn",
        "values": [0],
    }


@every_run
def test_as_many_nodes_are_waited_for_as_there_are_pods(template):
    assert option(template, "--nodes") == str(NODES)
    assert WORKER["replicas"] == NODES
    assert LAUNCHER["replicas"] == 1


@every_member
def test_a_member_runs_on_each_of_the_nodes_and_on_no_other(template):
    affinity = template["spec"]["affinity"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = affinity["nodeAffinity"][required]["nodeSelectorTerms"]
    fields = [field for term in terms for field in term["matchFields"]]
    assert all(set(term) == {"matchFields"} for term in terms)
    assert all((f["key"], f["operator"]) == ("metadata.name", "In") for f in fields)
    # Of a field the API takes one value (kubernetes/kubernetes#115980); terms are alternatives.
    assert [len(f["values"]) for f in fields] == [1] * NODES
    assert len({f["values"][0] for f in fields}) == NODES
    [apart] = affinity["podAntiAffinity"][required]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"] == {"matchLabels": LABELS}


@every_member
def test_a_member_passes_the_taints_that_a_nodes_own_test_passes(template):
    ours = SHIPPED["node-acceptance"]["spec"]["tolerations"]
    assert template["spec"]["tolerations"] == ours
    assert Names().pending in {t["key"] for t in ours}


def test_a_launcher_holds_no_device_and_passes_no_taint():
    inside = LAUNCHER["template"]["spec"]
    assert not {"tolerations", "affinity"} & set(inside)
    assert set(container(LAUNCHER["template"])["resources"]["limits"]) == {"memory"}


# --- what they may ------------------------------------------------------------------------------


@every_pod
def test_a_pod_has_no_token_and_sees_nothing_of_its_host(template):
    inside = template["spec"]
    assert inside["automountServiceAccountToken"] is False
    assert inside["enableServiceLinks"] is False
    assert "serviceAccountName" not in inside
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(inside)
    assert all(set(v) == {"name", "emptyDir"} for v in inside["volumes"])
    assert container(template)["image"].rpartition("@sha256:")[2] == "0" * 64


@every_pod
def test_a_pod_has_ipc_lock_and_syslog_at_most(template):
    security = container(template)["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert "privileged" not in security
    assert security["capabilities"]["drop"] == ["ALL"]
    added = security["capabilities"].get("add", [])
    # Kubernetes gives added capabilities to root alone.
    assert added == ([] if security.get("runAsNonRoot") else ["IPC_LOCK", "SYSLOG"])


@every_member
def test_a_member_has_the_devices_of_its_node_and_memory_to_share(template):
    resources = container(template)["resources"]
    assert set(resources["limits"]) == {
        "nvidia.com/gpu",
        "vpc.amazonaws.com/efa",
        "hugepages-2Mi",
        "memory",
    }
    assert resources["requests"] == {**resources["limits"], "cpu": "16"}
    [shm] = [v["emptyDir"] for v in template["spec"]["volumes"] if v["name"] == "shm"]
    assert shm["medium"] == "Memory"
    assert int(shm["sizeLimit"].removesuffix("Gi")) < int(
        resources["limits"]["memory"].removesuffix("Gi")
    )
    mounts = {m["mountPath"]: m["name"] for m in container(template)["volumeMounts"]}
    assert mounts["/dev/shm"] == "shm"  # noqa: S108  the pod's own


@pytest.mark.parametrize("name", ["indexed", "jobset", "mpijob launcher", "mpijob worker"])
def test_the_policies_admit_what_ships(name):
    pod = {"spec": TEMPLATES[name]["spec"]}
    for rules in (RULES, RULES_WITH_MPI):
        assert rules.refused("u", None, pod, resource="pods", labels=HOME) == []


def _by_the_operator(template, secret=f"{NAME}-ssh"):
    """A pod as the MPI operator makes it: setupSSHOnPod of kubeflow/mpi-operator caa3c47."""
    inside = copy.deepcopy(template["spec"])
    inside["volumes"].append({"name": "ssh-auth", "secret": {"secretName": secret}})
    return {"spec": inside}


@pytest.mark.parametrize("replica", [LAUNCHER, WORKER], ids=["launcher", "worker"])
def test_the_key_of_an_mpijob_is_admitted_where_its_policies_are(replica):
    pod = _by_the_operator(replica["template"])
    asked = {"resource": "pods", "labels": HOME}
    [said] = RULES.refused("u", None, pod, **asked)
    assert "holds no token" in said
    assert RULES_WITH_MPI.refused("u", None, pod, **asked) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["volumes"][-1]["secret"].update(secretName="another"),
        lambda s: s["volumes"].append({"name": "p", "hostPath": {"path": "/proc"}}),
        lambda s: s.update(automountServiceAccountToken=True),
        lambda s: (
            s.update(serviceAccountName="nodeproof-controller")
            or s["volumes"].append({"name": "p", "hostPath": {"path": "/proc"}})
        ),
        lambda s: s["volumes"].append(
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
        ),
    ],
    ids=["another secret", "a host", "a token", "an account that sees a host", "a projected token"],
)
def test_that_key_opens_nothing_else(change):
    pod = _by_the_operator(WORKER["template"])
    change(pod["spec"])
    assert RULES_WITH_MPI.refused("u", None, pod, resource="pods", labels=HOME)


@pytest.mark.parametrize(("new", "wanted"), [c[1:] for c in SHAPES], ids=[c[0] for c in SHAPES])
def test_the_policies_for_an_mpijob_refuse_all_that_the_others_refuse(new, wanted):
    said = RULES_WITH_MPI.refused("u", None, new, resource="pods", labels=HOME)
    assert any(wanted in line for line in said)


def test_the_controller_does_not_take_them_for_its_own():
    """It lists what carries the label of its Jobs; a group's results are none of its business."""
    [own] = documents(K8S / "jobs/node-acceptance.yaml")
    key = "app.kubernetes.io/name"
    assert own["metadata"]["labels"][key] != LABELS[key]
    assert own["spec"]["template"]["metadata"]["labels"][key] != LABELS[key]


# --- who hears whom -------------------------------------------------------------------------------


@every_pod
def test_every_pod_of_the_group_carries_its_labels(template):
    assert template["metadata"]["labels"] == LABELS


def test_the_head_is_found_by_name_before_anything_is_ready():
    service = one(INDEXED, "Service", NAME)["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"] == LABELS
    assert JOB["template"]["spec"]["subdomain"] == NAME
    [port] = service["ports"]
    assert port["port"] == wire.PORT


@pytest.mark.parametrize(
    ("form", "pod"),
    [
        ("indexed", f"{NAME}-0"),
        ("jobset", f"{NAME}-members-0-0"),
        ("mpijob launcher", f"{NAME}-launcher"),
    ],
)
def test_every_member_is_sent_to_the_pod_of_the_head(form, pod):
    """By hostname and subdomain, as Job, JobSet and the MPI operator give them."""
    assert option(TEMPLATES[form], "--head") == f"{pod}.{NAME}:{wire.PORT}"


def test_a_name_of_a_pod_fits_into_a_label_of_dns():
    assert all(len(f"{NAME}{end}") <= 63 for end in ("-members-0-9999", "-launcher", "-worker-99"))


@pytest.mark.parametrize("objects", [INDEXED, JOBSET, MPIJOB], ids=["indexed", "jobset", "mpijob"])
def test_the_group_talks_to_itself_and_to_dns(objects):
    [policy] = [o["spec"] for o in objects if o["kind"] == "NetworkPolicy"]
    assert policy["podSelector"] == {"matchLabels": LABELS}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": LABELS}}]}]
    [itself, names] = policy["egress"]
    assert itself == {"to": [{"podSelector": {"matchLabels": LABELS}}]}
    assert names == {
        "to": [
            {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": "kube-system"}
                },
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            }
        ],
        "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
    }


@pytest.mark.parametrize("form", ["indexed", "jobset"])
def test_members_know_each_other_by_a_word_that_no_file_holds(form):
    [word] = [e for e in container(TEMPLATES[form])["env"] if e["name"] == wire.TOKEN]
    assert word["valueFrom"] == {"secretKeyRef": {"name": NAME, "key": "token"}}
    assert not any(o["kind"] == "Secret" for o in INDEXED + JOBSET + MPIJOB)


def test_mpirun_starts_the_members_where_the_operator_says():
    """The head makes the word for them itself, and has mpirun take it along."""
    words = container(LAUNCHER["template"])["args"]
    assert words[words.index("--") + 1 :] == ["--hostfile", "/etc/mpi/hostfile"]
    assert option(LAUNCHER["template"], "--launcher") == "mpirun"
    assert "env" not in container(LAUNCHER["template"])


@every_member
def test_a_member_is_named_by_its_node(template):
    [named] = [e for e in container(template)["env"] if e["name"] == member.NODE_NAME]
    assert named["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    told = f"$({member.NODE_NAME})"
    # Into a session of ssh the environment of the container does not come by itself.
    passed = {told, f"SetEnv={member.NODE_NAME}={told}"}
    assert passed & set(container(template)["args"])


def test_the_launcher_waits_until_ssh_answers():
    assert container(WORKER["template"])["readinessProbe"]["tcpSocket"] == {"port": 2222}


# --- for how long ---------------------------------------------------------------------------------


def _told():
    """The seconds in the table of README.md, from the inside out."""
    rows = re.findall(
        r"^\| (.+?) \| (\d+) \| .+ \|$", (K8S / FOLDER / "README.md").read_text(), re.MULTILINE
    )
    return {what: int(seconds) for what, seconds in rows}


def test_each_deadline_is_longer_than_the_one_inside_it():
    assert list(_told()) == [
        "a collective",
        "its process group",
        "a worker's call",
        "a round of pairs",
        "the run",
        "the Job",
    ]
    seconds = list(_told().values())
    assert seconds == sorted(set(seconds))


@every_run
def test_the_deadlines_are_those_that_are_told(template):
    assert option(template, "--timeout") == str(_told()["a collective"])
    assert option(template, "--deadline") == str(_told()["the run"])


@every_job
def test_the_job_outlasts_its_run_and_the_judging(job):
    assert job["activeDeadlineSeconds"] == _told()["the Job"]
    joined = float(option(job["template"], "--join-timeout"))
    assert job["activeDeadlineSeconds"] >= _told()["the run"] + fabric_run._JUDGING_S + joined


def test_the_workers_of_an_mpijob_outlast_their_launcher_and_end_all_the_same():
    outer = WORKER["template"]["spec"]["activeDeadlineSeconds"]
    assert outer > MPI["runPolicy"]["activeDeadlineSeconds"]


def test_what_the_program_derives_is_what_is_told():
    told = _told()
    one_s = told["a collective"]
    assert told["its process group"] == 2 * one_s
    assert told["a worker's call"] == campaign._START_S + 3 * one_s
    assert told["a round of pairs"] == told["a worker's call"] + head._MARGIN_S


# --- alike ----------------------------------------------------------------------------------------


def test_a_jobset_holds_the_same_job():
    """But for what its controller adds: the subdomain, the time it is kept, the name of the head."""
    mine = copy.deepcopy(JOB)
    del mine["ttlSecondsAfterFinished"]
    del mine["template"]["spec"]["subdomain"]
    words = container(mine["template"])["args"]
    words[words.index("--head") + 1] = option(JOB_OF_SET["template"], "--head")
    assert mine == JOB_OF_SET


def test_an_mpijob_asks_for_the_same():
    asked = ("--nodes", "--device", "--max-bytes", "--spec", "--join-timeout", "--timeout")
    for name in (*asked, "--deadline", "--output", "--dispatch"):
        assert option(LAUNCHER["template"], name) == option(JOB["template"], name)
    mine, theirs = (container(t)["resources"] for t in (WORKER["template"], JOB["template"]))
    assert mine == theirs


@every_run
def test_the_command_is_one_that_we_have(template):
    args = cli._parser().parse_args(container(template)["args"])
    assert (args.nodes, args.device, args.deadline) == (NODES, "cuda", _told()["the run"])
    assert args.max_bytes == 8 << 30
    spec.known(spec.load(args.spec), options.suites())


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize(
    "folder", [FOLDER, *(f"{FOLDER}/{f}" for f in ("jobset", "mpijob", "mpijob/policies"))]
)
def test_kubectl_builds_the_same(folder):
    said = subprocess.run(
        ["kubectl", "kustomize", str(K8S / folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    def by_name(objects):
        return sorted(objects, key=lambda o: (o["kind"], o["metadata"]["name"]))

    assert by_name(yaml.safe_load_all(said.stdout)) == by_name(built(folder))


def test_what_is_deleted_with_a_group_is_no_policy_of_the_gate():
    for objects in (INDEXED, JOBSET, MPIJOB):
        kinds = {o["kind"] for o in objects}
        assert kinds <= {"Service", "Job", "JobSet", "MPIJob", "NetworkPolicy"}
