"""The tiny model, prepared once a test process in a directory of its own."""

import os

import pytest

from crl.config import RoleConfig
from crl.policies.language_model import load_policy
from crl.policies.sources import resolve_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The prepared model `tiny`."""
    before = os.environ.get("CRL_MODELS")
    os.environ["CRL_MODELS"] = str(tmp_path_factory.mktemp("models"))
    try:
        yield resolve_model("tiny")
    finally:
        os.environ.pop("CRL_MODELS")
        if before is not None:
            os.environ["CRL_MODELS"] = before


@pytest.fixture(scope="session")
def policy(tiny):
    """`tiny` in float32."""
    return load_policy(RoleConfig(model="tiny"), tiny.path, None, threads=1)
