"""Which image a test pod ran: what the kubelet was told, and what the runtime calls it."""

from __future__ import annotations

import dataclasses

import pytest
from gate_attempt import Attempt
from gate_cluster import DIGEST

from nodeproof.gate.proof import Ruling
from nodeproof.verdict import Decision

OTHER = "sha256:" + "ab" * 32
KNOWN = "sha256:" + "cd" * 32


def judged(image_id=None, image=None):
    attempt = Attempt()
    attempt.settings = dataclasses.replace(attempt.settings, image_ids=[KNOWN])
    assert attempt.pod is not None
    if image_id is not None:
        attempt.pod["status"]["containerStatuses"][0]["imageID"] = image_id
    if image == "none":
        del attempt.pod["spec"]["containers"]
    elif image:
        attempt.pod["spec"]["containers"][0]["image"] = image
    return attempt.judged()


@pytest.mark.parametrize(
    "image_id",
    [
        DIGEST,
        OTHER,  # of its configuration, as containerd may say
        f"mirror.example.com/x@{DIGEST}",
        f"docker-pullable://mirror.example.com/x@{DIGEST}",
        f"mirror.example.com/y@{KNOWN}",
    ],
)
def test_names_of_the_same_image_are_no_other_image(image_id):
    assert judged(image_id).decision is Decision.ACCEPT


@pytest.mark.parametrize(
    "image_id",
    [
        "",
        "nodeproof:1",
        "registry.example.com/nodeproof",
        f"mirror.example.com/x@{OTHER}",
        f"{DIGEST}0",
    ],
)
def test_what_the_site_does_not_know_by_that_name_is_foreign_and_says_what_to_do(image_id):
    said = judged(image_id)
    assert said.ruling is Ruling.FOREIGN
    assert "image_ids" in said.text


@pytest.mark.parametrize("image", ["none", "registry.example.com/nodeproof:1", f"x@{OTHER}"])
def test_a_pod_that_was_made_with_another_image_is_foreign_whatever_the_runtime_says(image):
    said = judged(image=image)
    assert said.ruling is Ruling.FOREIGN
    assert "made with image" in said.text
