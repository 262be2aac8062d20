"""The published schemas of Kubernetes, JobSet and Kubeflow Trainer: the models of kubeflow-trainer-api."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from kits.examples.manifests import Manifest

MODELS = {
    ("v1", "PersistentVolumeClaim"): "io_k8s_api_core_v1_persistent_volume_claim",
    ("v1", "Service"): "io_k8s_api_core_v1_service",
    ("batch/v1", "Job"): "io_k8s_api_batch_v1_job",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "jobset_v1alpha2_job_set",
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "trainer_v1alpha1_train_job",
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): "trainer_v1alpha1_training_runtime",
}
"""API version and kind to the module of its model."""
_PARTS = {
    ("apps/v1", "StatefulSet"): (
        ("template", "io_k8s_api_core_v1_pod_template_spec"),
        ("volumeClaimTemplates", "io_k8s_api_core_v1_persistent_volume_claim"),
    ),
    ("policy/v1", "PodDisruptionBudget"): (),
}
"""Of which the package has no model, and the fields of their ``spec`` that it has one for."""


def check(manifest: Manifest) -> None:
    """Raises ``ValueError`` for a field that is not in the schema, is missing, or has a value of a wrong type."""
    kind = manifest["apiVersion"], manifest["kind"]
    if kind in MODELS:
        _check(manifest, MODELS[kind])
        return
    for field, model in _PARTS[kind]:
        part = manifest["spec"][field]
        for each in part if isinstance(part, list) else [part]:
            _check(each, model)


def _check(given: Manifest, model: str) -> None:
    module = importlib.import_module(f"kubeflow_trainer_api.models.{model}")
    name = model.replace("_", "")
    (found,) = (each for each in vars(module).values() if getattr(each, "__name__", "").lower() == name)
    if unknown := [*_lost(given, found.from_dict(given), "")]:
        raise ValueError(f"not in the schema: {', '.join(unknown)}")


def _lost(given: Any, read: Any, path: str) -> Iterator[str]:
    """What is not in the model that was read: the models leave out what they do not know."""
    if isinstance(given, dict) and hasattr(type(read), "model_fields"):
        fields = {field.alias or name: name for name, field in type(read).model_fields.items()}
        for key, value in given.items():
            if key not in fields:
                yield f"{path}.{key}"
            else:
                yield from _lost(value, getattr(read, fields[key]), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(read, list):
        for number, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from _lost(one, other, f"{path}[{number}]")
