"""Every error class has an exit code of its own kind, and a twin that code around torch's agent catches."""

import pytest
from torch.distributed.elastic.rendezvous import api

from rdzv_plugins import Failure, errors
from rdzv_plugins.torch_types import as_torch


def subclasses(base):
    below = [cls for cls in base.__subclasses__() if cls.__module__ == errors.__name__]
    return [base, *(found for cls in below for found in subclasses(cls))]


@pytest.mark.parametrize("cls", [cls for cls in subclasses(errors.RdzvError) if cls is not errors.RdzvError])
def test_class_has_an_exit_code_that_is_not_a_training_scripts_own(cls):
    code = cls.exit_code
    assert (code == 2) if issubclass(cls, errors.UsageError) else (64 <= code <= 78 or 80 <= code <= 83)
    assert code != errors.RdzvError.exit_code, "the base's 70 means: nobody thought of it"


KINDS = {
    errors.RendezvousTimeout: api.RendezvousTimeoutError,
    errors.RendezvousClosed: api.RendezvousClosedError,
    errors.PeerFailed: api.RendezvousClosedError,
    errors.SpareReleased: api.RendezvousGracefulExitError,
    errors.EndpointUnreachable: api.RendezvousConnectionError,
    errors.EndpointLost: api.RendezvousConnectionError,
    errors.AddressInUse: api.RendezvousConnectionError,
    errors.RunIdMismatch: api.RendezvousStateError,
    errors.SettingsDiffer: api.RendezvousStateError,
}


@pytest.mark.parametrize("cls", subclasses(errors.RendezvousFailed))
def test_twin_is_ours_and_torchs_and_keeps_all_that_the_error_says(cls):
    failure = Failure(node_rank=1, host="node", global_rank=3, local_rank=1, pid=7, exit_code=-9)
    error = cls("what happened", *([failure] if cls is errors.PeerFailed else []))
    error.remedy = "what to do"
    error.__cause__ = OSError("the real cause")
    twin = as_torch(error)
    assert isinstance(twin, cls)
    assert isinstance(twin, KINDS.get(cls, api.RendezvousError))
    assert (str(twin), twin.remedy, twin.exit_code) == ("what happened", "what to do", error.exit_code)
    assert twin.__cause__ is error.__cause__
    assert type(twin).__name__ == cls.__name__
    assert type(as_torch(twin)) is type(twin)
    assert getattr(twin, "failure", None) == getattr(error, "failure", None)
