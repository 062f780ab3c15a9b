"""The Job of a group, and what a site may say of groups."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import pytest
from gate_cluster import IMAGE, NAMES, SPEC
from gate_groups import GROUPED, KIND, MEMBERS, NONCE, place
from gate_nodes import node
from k8s_fields import model, unknown

from nodeproof import cli
from nodeproof.gate import group_job
from nodeproof.gate.actions import Measure
from nodeproof.gate.attempt import job_of
from nodeproof.gate.group import group_of, members_of
from nodeproof.gate.settings import Settings, SettingsError, parse
from nodeproof.model import Profile

FOUR = Measure(members=MEMBERS, attempt=1, devices=8)


def built(measure=FOUR, site=GROUPED, nonce=NONCE):
    return group_job.build(measure, site, SPEC, nonce=nonce)


def pod_of(made):
    return made["spec"]["template"]["spec"]


def container(made):
    [only] = pod_of(made)["containers"]
    return only


# --- the Job --------------------------------------------------------------------------------

SITES = [
    GROUPED,
    dataclasses.replace(
        GROUPED,
        spec="p5",
        runtime_class="nvidia",
        priority_class="high",
        tolerate={"dedicated": "NoExecute"},
        group_resources={"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"},
    ),
]


@pytest.mark.parametrize("site", SITES, ids=["plain", "everything"])
def test_every_field_is_known_to_the_api(site):
    made = built(site=site)
    kind = model(made)
    assert kind is not None
    assert list(unknown(made, kind)) == []
    json.dumps(made)


def test_the_name_is_the_same_whoever_looks_and_another_for_whatever_differs():
    name = group_job.name_of(FOUR)
    for order in itertools.permutations(MEMBERS):
        assert group_job.name_of(dataclasses.replace(FOUR, members=order)) == name
    first, *others = MEMBERS
    different = [
        dataclasses.replace(FOUR, attempt=2),
        dataclasses.replace(FOUR, members=MEMBERS[:3]),
        dataclasses.replace(FOUR, members=(*MEMBERS, place("v"))),
        *(
            dataclasses.replace(FOUR, members=(dataclasses.replace(first, **{what: "other"}), *others))
            for what in ("uid", "boot_id", "proof")
        ),
    ]  # fmt: skip
    names = [group_job.name_of(m) for m in different]
    assert len({name, *names}) == len(names) + 1


@pytest.mark.parametrize("attempt", [1, 99, 10**6])
def test_a_pod_of_it_still_has_a_name_that_is_a_host_name(attempt):
    """Kubernetes names the pod of an Indexed Job, and its host, after the Job and its index."""
    name = group_job.name_of(dataclasses.replace(FOUR, attempt=attempt))
    assert re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(f"{name}-63") <= 63
    assert len(f"{name}-63-abcde") <= 63


def test_it_says_of_itself_what_a_member_is_judged_by():
    made = built()
    made["metadata"] |= {"uid": "u", "creationTimestamp": "2026-03-01T00:00:00Z"}
    assert members_of(made, NAMES) == MEMBERS
    for place_ in MEMBERS:
        found = node(name=place_.node, uid=place_.uid, boot=place_.boot_id)
        seen = group_of(made, [], NAMES, found)
        assert seen is not None
        job = seen.job
        assert (job.node_uid, job.boot_id, job.trigger) == (
            place_.uid,
            place_.boot_id,
            place_.proof,
        )
        assert (job.nonce, job.image, job.profile, job.devices) == (NONCE, IMAGE, "quick", 8)
        assert (job.spec_digest, job.attempt, job.ended) == (SPEC.digest, 1, None)
        assert seen.members == MEMBERS


def test_it_is_no_test_of_one_node_whatever_reads_it_as_one():
    assert job_of(built(), [], NAMES) is None
    assert built()["metadata"]["labels"]["app.kubernetes.io/name"] != "nodeproof"


def test_one_pod_a_node_each_tried_once():
    spec = built()["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert spec["backoffLimitPerIndex"] == 0
    assert {r["action"] for r in spec["podFailurePolicy"]["rules"]} == {"FailIndex"}
    assert spec["podReplacementPolicy"] == "Failed"
    pods = spec["template"]["spec"]
    assert pods["restartPolicy"] == "Never"
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = pods["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    assert [t["matchFields"][0]["values"] for t in terms] == [[m.node] for m in MEMBERS]
    [apart] = pods["affinity"]["podAntiAffinity"][required]
    labels = spec["template"]["metadata"]["labels"]
    assert apart["labelSelector"]["matchLabels"] == labels
    assert labels[NAMES.label("group")] == built()["metadata"]["name"], "of this group alone"


def test_deadlines_are_nested():
    made = built()
    words = container(made)["args"]
    run_s = float(words[words.index("--deadline") + 1])
    assert run_s == GROUPED.group_deadline_s
    assert made["spec"]["activeDeadlineSeconds"] == run_s + GROUPED.job_margin_s


def test_its_pods_have_no_token_and_no_more_rights_than_a_test_of_one_node():
    pods = pod_of(built())
    assert pods["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pods)
    assert not [v for v in pods["volumes"] if "hostPath" in v or "projected" in v]
    security = container(built())["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK", "SYSLOG"]}
    assert security["allowPrivilegeEscalation"] is False


def test_it_asks_for_all_gpus_and_what_the_site_adds():
    given = container(built(site=SITES[1]))["resources"]
    assert given["limits"]["nvidia.com/gpu"] == "8"
    for name, amount in SITES[1].group_resources.items():
        assert given["limits"][name] == given["requests"][name] == amount


def test_its_command_is_one_that_we_have_and_binds_the_nonce():
    for site in SITES:
        words = container(built(site=site))["args"]
        plain = [w.replace("$(NODEPROOF_NODE_NAME)", "gpu-a17") for w in words]
        told = cli._parser().parse_args(plain)
        assert (told.nonce, told.nodes, told.node_name) == (NONCE, 4, "gpu-a17")
        assert (told.device, told.max_bytes, told.spec) == ("cuda", 8 << 30, site.spec or told.spec)
        assert str(told.dispatch) == container(built())["terminationMessagePath"]


def test_who_meets_the_head_says_a_word_that_is_not_told_with_the_verdict():
    def word(made):
        return {e["name"]: e.get("value") for e in container(made)["env"]}["NODEPROOF_FABRIC_TOKEN"]

    assert word(built()) != NONCE
    assert NONCE not in word(built())
    assert word(built()) == word(built())
    assert word(built(nonce="another")) != word(built())


# --- settings -------------------------------------------------------------------------------


def told(more):
    return parse(f'image = "{IMAGE}"\n{more}\n[expected]\n"{KIND}" = 8\n')


def test_no_node_is_measured_with_others_unless_a_site_says_so():
    site = told("")
    assert site.grouped == ()
    assert not site.measured_together({site.kind_label: KIND})
    assert not site.measured_together({})


def test_what_is_said_of_groups_is_taken():
    site = told(
        f'grouped = ["{KIND}"]\ngroup_least = 4\ngroup_most = 4\ngroup_label = "rack"\n'
        'group_wait_s = 0\ngroup_deadline_s = 600\ngroup_bytes = "1GiB"\ngroups_at_once = 3\n'
        'group_resources = { "vpc.amazonaws.com/efa" = "32" }\n'
    )
    assert site.measured_together({site.kind_label: KIND})
    assert not site.measured_together({site.kind_label: "p4d.24xlarge"})
    assert (site.group_least, site.group_most, site.group_wait_s) == (4, 4, 0.0)
    assert site.group_resources == {"vpc.amazonaws.com/efa": "32"}


def test_a_group_is_judged_by_settings_of_its_own_and_otherwise_by_the_nodes():
    site = dataclasses.replace(GROUPED, profile=Profile.DEEP, run_deadline_s=9000.0)
    of_groups = site.of_groups()
    assert (of_groups.profile, of_groups.run_deadline_s) == (Profile.QUICK, 2400.0)
    same = {"profile": site.profile, "run_deadline_s": site.run_deadline_s}
    assert dataclasses.replace(of_groups, **same) == site


@pytest.mark.parametrize("size", ["8GiB", "8G", "1M", "65536", "512MiB", "64K"])
def test_every_size_that_is_taken_is_one_for_the_command(size):
    site = told(f'grouped = ["{KIND}"]\ngroup_bytes = "{size}"')
    words = container(built(site=site))["args"]
    plain = [w.replace("$(NODEPROOF_NODE_NAME)", "gpu-a17") for w in words]
    assert cli._parser().parse_args(plain).max_bytes > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("group_least = 1", "group_least = 1"),
        ("group_least = 0", "group_least"),
        ("group_least = -2", "group_least"),
        ("group_least = 2.0", "group_least"),
        ("group_least = true", "group_least"),
        ("group_least = 9", "group_least = 9, group_most = 8"),
        ("group_most = 1", "group_most = 1"),
        ("group_most = 65", "at most 64"),
        ('group_most = "8"', "group_most"),
        ("group_deadline_s = 599", "group_deadline_s = 599: give at least 600"),
        ("group_deadline_s = inf", "group_deadline_s"),
        ("group_deadline_s = nan", "group_deadline_s"),
        ("group_wait_s = -1", "group_wait_s"),
        ("group_wait_s = inf", "group_wait_s"),
        ("groups_at_once = 0", "groups_at_once"),
        ("groups_at_once = false", "groups_at_once"),
        ("group_label = 7", "group_label"),
        ("group_label = []", "group_label"),
        ('group_bytes = ""', "group_bytes = '' is no size"),
        ('group_bytes = "0"', "group_bytes"),
        ('group_bytes = "much"', "group_bytes"),
        ('group_bytes = "8 GiB"', "group_bytes"),
        ('group_bytes = "-8GiB"', "group_bytes"),
        ('group_bytes = "8TiB"', "group_bytes"),
        ("group_bytes = 8", "group_bytes"),
        ('group_resources = { "nvidia.com/gpu" = "1" }', "group_resources names nvidia.com/gpu"),
        ("group_resources = { efa = 32 }", "group_resources"),
        ('group_resources = ["efa"]', "group_resources"),
        (f'grouped = "{KIND}"', "grouped"),
        ("grouped = [8]", "grouped"),
        ("grouped = true", "grouped"),
        ('grouped = ["p4d.24xlarge"]', "grouped names 'p4d.24xlarge', and expected does not say"),
        ('grouped = [""]', "grouped names ''"),
    ],
)
def test_groups_that_no_node_could_pass_or_that_prove_nothing_are_refused(text, words):
    with pytest.raises(SettingsError, match=re.escape(words)):
        told(text)


def test_every_setting_of_groups_is_in_these_tables():
    named = {f.name for f in dataclasses.fields(Settings) if f.name.startswith("group")}
    assert named == {
        "grouped",
        "group_least",
        "group_most",
        "group_label",
        "group_wait_s",
        "group_deadline_s",
        "group_bytes",
        "group_resources",
        "groups_at_once",
    }
