"""A four-layer model of each path, made once, and a configuration of few sizes."""

from __future__ import annotations

import pytest
import torch

from paths.api import ModelSource
from paths.dsa_mrv2.model import DsaModel
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.weights import load_weights
from tests.graphs.driver import MAX_LEN, VOCAB
from tests.model_driver import CPU, build_model
from tests.models.hf_configs import hf


def dsa_model(*, dtype=torch.float32, hadamard=False, model_class=DsaModel, kernels="cpp", mtp=0, **changes):
    config = ModelConfig.from_hf(hf(vocab_size=VOCAB, **changes))
    source = ModelSource(name="graphs", hf_config={}, checkpoint="dummy")
    weights = load_weights(source, config, dtype=dtype, device=CPU, mtp=mtp)
    return build_model(
        model_class,
        config,
        weights,
        kernels=Kernels(CPU, kernels),
        dtype=dtype,
        hadamard=hadamard,
        max_model_len=MAX_LEN,
    )


@pytest.fixture(scope="package")
def model():
    return dsa_model()


@pytest.fixture(scope="package")
def small_model():
    return dsa_model(num_hidden_layers=2)
