"""The published schemas of Kubernetes, JobSet and Kubeflow Trainer, as two packages have them in classes.

Those of Kubernetes are in lightkube-models, made from its API specification; the others in kubeflow-trainer-api.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.structs

from kits.examples.manifests import Manifest

_OF_KUBERNETES = ("v1", "apps/v1", "batch/v1", "policy/v1")
_OTHERS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "jobset_v1alpha2_job_set",
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "trainer_v1alpha1_train_job",
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): "trainer_v1alpha1_training_runtime",
}
"""API version and kind to the module of its model."""


def check(manifest: Manifest) -> None:
    """Raises ``ValueError`` for a field that is not in the schema, is missing, or has a value of a wrong type."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    read = _of_kubernetes(manifest) if version in _OF_KUBERNETES else _of_others(manifest, _OTHERS[version, kind])
    if unknown := [*_lost(manifest, read, "")]:
        raise ValueError(f"not in the schema: {', '.join(unknown)}")


def _of_kubernetes(manifest: Manifest) -> Any:
    module = manifest["apiVersion"].replace("/", "_")
    models = importlib.import_module(f"lightkube.models.{'core_v1' if module == 'v1' else module}")
    try:
        return msgspec.convert(manifest, getattr(models, manifest["kind"]))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def _of_others(manifest: Manifest, model: str) -> Any:
    module = importlib.import_module(f"kubeflow_trainer_api.models.{model}")
    name = model.replace("_", "")
    (found,) = (each for each in vars(module).values() if getattr(each, "__name__", "").lower() == name)
    return found.from_dict(manifest)


def _lost(given: Any, read: Any, path: str) -> Iterator[str]:
    """What is not in the model that was read: the models leave out what they do not know."""
    if isinstance(given, dict) and (known := _fields(read)) is not None:
        for key, value in given.items():
            if key not in known:
                yield f"{path}.{key}"
            else:
                yield from _lost(value, getattr(read, known[key]), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(read, list):
        for number, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from _lost(one, other, f"{path}[{number}]")


def _fields(read: Any) -> dict[str, str] | None:
    """The names of an object's fields in a manifest, and in Python; None if it is no model."""
    if isinstance(read, msgspec.Struct):
        return {field.encode_name: field.name for field in msgspec.structs.fields(read)}
    if hasattr(type(read), "model_fields"):
        return {field.alias or name: name for name, field in type(read).model_fields.items()}
    return None
