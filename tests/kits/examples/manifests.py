"""Manifests of examples/kubernetes, and the processes that Kubernetes would make of them, on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from kits import ROOT

FOLDER = ROOT / "examples/kubernetes"
ETCD = "etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379"
"""The endpoint in all manifests."""

Manifest = dict[str, Any]


def documents(name: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all((FOLDER / name).read_text()) if document]


def one(name: str, kind: str) -> Manifest:
    """The only manifest of that kind in a file."""
    (found,) = (document for document in documents(name) if document["kind"] == kind)
    return found


def job_of(manifest: Manifest) -> Manifest:
    """What is like a Job in a manifest with pods: that of a JobSet, or of a runtime of Trainer, and a Job itself."""
    spec = manifest["spec"]
    if manifest["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    if "replicatedJobs" not in spec:
        return manifest
    (job,) = spec["replicatedJobs"]
    found: Manifest = job["template"]
    return found


def pod_of(manifest: Manifest) -> Manifest:
    """The pod's spec in a manifest with pods."""
    spec: Manifest = job_of(manifest)["spec"]["template"]["spec"]
    return spec


def container_of(manifest: Manifest) -> Manifest:
    (container,) = pod_of(manifest)["containers"]
    assert isinstance(container, dict)
    return container


class Pod:
    """Command and environment of a container, as the kubelet makes them of a manifest.

    ``fields`` is what the downward API knows of the pod. ``here`` replaces what is elsewhere in a cluster: addresses,
    the folders that volumes are mounted on.
    """

    def __init__(self, manifest: Manifest, fields: Mapping[str, str], here: Mapping[str, str]) -> None:
        container = container_of(manifest)
        self.env: dict[str, str] = {}
        for each in container.get("env", ()):
            # a value may name the variables above it
            value = fields[each["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in each else each["value"]
            self.env[each["name"]] = self._expand(value)
        if manifest["spec"].get("completionMode") == "Indexed":  # the Job controller adds it, after the others
            index = fields["metadata.annotations['batch.kubernetes.io/job-completion-index']"]
            self.env.setdefault("JOB_COMPLETION_INDEX", index)
        self.command = [self._here(self._expand(part), here) for part in container["command"]]
        self.env = {name: self._here(value, here) for name, value in self.env.items()}

    def _expand(self, text: str) -> str:
        return re.sub(r"\$\((\w+)\)", lambda found: self.env.get(found[1], found[0]), text)

    def _here(self, text: str, here: Mapping[str, str]) -> str:
        for there, value in here.items():
            text = text.replace(there, value)
        return text


def pods(manifest: Manifest, here: Mapping[str, str]) -> list[Pod]:
    """All pods of an Indexed Job."""
    uid = {"metadata.labels['batch.kubernetes.io/controller-uid']": "5b1c0a2e-77aa-4d0f-9d6e-2f4f0d4a9c11"}
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return [Pod(manifest, uid | {index: str(each)}, here) for each in range(manifest["spec"]["completions"])]
