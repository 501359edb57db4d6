"""The update on a GPU: equal bits for equal inputs, in bfloat16, too, and the gradient points where the CPU's does."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig
from tests.processes import PATIENCE_SECONDS

pytestmark = pytest.mark.gpu


def update(model_path, samples, hide_gpu, autocast, queue):
    if hide_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["DS_ACCELERATOR"] = "cpu"
    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer

    role = RoleConfig(
        optimizer=OptimizerConfig(kind="sgd", learning_rate=0.1, max_grad_norm=0),
        deepspeed=DeepSpeedConfig(autocast=autocast),
    )
    trainer = Trainer(role, model_path=model_path, checkpoint=None, threads=1)
    seen = {}
    metrics = trainer.update(samples, objectives(ActorObjective()), inspect=seen.update)
    device = next(trainer._engine.module.parameters()).device.type
    queue.put((device, metrics, {name: value.numpy() for name, value in seen.items()}))


def run(model_path, samples, *, hide_gpu, autocast="none"):
    """One update in a process of its own: whether a GPU is seen is decided once a process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=update, args=(model_path, samples, hide_gpu, autocast, queue))
    process.start()
    result = queue.get(timeout=PATIENCE_SECONDS)
    process.join()
    return result


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU on this machine")


def cosine(left, right):
    import numpy as np

    flat_left, flat_right = (np.concatenate([each[name].ravel() for name in sorted(each)]) for each in (left, right))
    return float(flat_left @ flat_right / np.linalg.norm(flat_left) / np.linalg.norm(flat_right))


def test_the_gradient_on_a_gpu_points_where_the_cpus_does(base_model, random_samples):
    samples = random_samples(8)
    device_cpu, _, on_cpu = run(base_model, samples, hide_gpu=True)
    device_gpu, _, on_gpu = run(base_model, samples, hide_gpu=False)
    assert (device_cpu, device_gpu) == ("cpu", "cuda")
    assert on_cpu.keys() == on_gpu.keys()
    assert cosine(on_cpu, on_gpu) > 0.99999


def test_a_bfloat16_update_on_a_gpu_moves_the_weights_the_same_way(base_model, random_samples):
    samples = random_samples(8)
    _, _, on_cpu = run(base_model, samples, hide_gpu=True)
    device, metrics, in_bfloat16 = run(base_model, samples, hide_gpu=False, autocast="bfloat16")
    assert device == "cuda"
    assert metrics["stepped"] == 1.0 and metrics["update_norm"] > 0
    assert cosine(on_cpu, in_bfloat16) > 0.98


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_the_same_update_on_a_gpu_gives_the_same_bits(base_model, random_samples, autocast):
    """With algorithms that add in any order, runs with one seed part here."""
    samples = random_samples(96)
    _, one, gradients = run(base_model, samples, hide_gpu=False, autocast=autocast)
    _, other, again = run(base_model, samples, hide_gpu=False, autocast=autocast)
    assert one == other
    assert all((gradients[name] == again[name]).all() for name in gradients)
