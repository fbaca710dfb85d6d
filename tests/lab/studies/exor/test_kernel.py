"""The kernel against the fast engine: in interpreter mode, and lowered for both compilers."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from tiejax import training
from tiejax.lab.studies.exor import ensemble as exor
from tiejax.lab.studies.exor import kernel
from tiejax.lab.studies.exor.settings import Settings
from tiejax.training import seed_keys


def with_kernel(settings, compiler):
    ensemble = exor.build_ensemble(settings)
    return dataclasses.replace(
        ensemble, source=training.TrainSteps(exor.build_kernel(settings, ensemble.arm_ties[:, 0].tolist(), compiler).train)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"schedule": "constant"},
        {"variant": "dh", "batch_size": 20, "max_norm": 0.2, "optimizer": "adam", "weight_decay": 0.01},
        {"heads": 2, "width": 8, "feed_forward": 16, "activation": "tanh", "bits": 4, "doses": [0.5, 0.9]},
    ],
    ids=str,
)
def test_100_steps_equal_the_fast_engine(how):
    fields = {"seeds": [3, 5], "steps": 100, "record_every": 40, "exact_every": 40, "half_period": 70, "learning_rate": 5e-3}
    settings = Settings(engine="kernel", **fields, **how).resolved()
    conditions, seeds = zip(*settings.seeds_by_condition, strict=True)
    fast, one = (
        training.train(ensemble, seeds, conditions=conditions)
        for ensemble in (exor.build_ensemble(settings), with_kernel(settings, "interpret"))
    )
    for name in ("train_loss", "distance_output"):
        np.testing.assert_allclose(one.records["record"][name], fast.records["record"][name], rtol=1e-6, atol=1e-6)
    for (path, value), expected in zip(
        jax.tree_util.tree_leaves_with_path(one.members.state), jax.tree.leaves(fast.members.state), strict=True
    ):
        size = value.shape[-1] // 3
        # The gradient of the key bias is zero: AdamW turns rounding errors into arbitrary steps, without effect on the loss.
        seen = np.r_[0:size, 2 * size : 3 * size] if "qkv" in str(path) and "bias" in str(path) else np.s_[:]
        np.testing.assert_allclose(value[..., seen], expected[..., seen], rtol=1e-5, atol=2e-6, err_msg=str(path))
    tables = [fast.members.state.params[name]["embedding"] for name in ("embed", "head")]
    assert not np.array_equal(tables[0][:, 0], tables[1][:, 0])
    tables = [one.members.state.params[name]["embedding"] for name in ("embed", "head")]
    assert np.array_equal(tables[0][:, 1], tables[1][:, 1])


FORMS = [
    {},
    {
        **{"heads": 2, "width": 8, "feed_forward": 16, "activation": "tanh", "optimizer": "adam", "max_norm": 1.0},
        **{"schedule": "constant", "doses": [0.5, 0.9]},
    },
]


@pytest.mark.parametrize("how", FORMS, ids=str)
def test_kernel_lowers_for_a_gpu(how):
    assert custom_calls("cuda", how) == {"__gpu$xla.gpu.triton"}


@pytest.mark.parametrize("how", FORMS, ids=str)
def test_kernel_lowers_for_a_tpu(how):
    device = AbstractDevice("TPU v5 lite", 1, "tpu")
    with use_abstract_mesh(AbstractMesh((1,), ("devices",), abstract_device=device)):
        assert custom_calls("tpu", how) == {"tpu_custom_call"}


def custom_calls(compiler, how):
    """Return the custom calls in the training of two seeds, lowered for an absent platform."""
    settings = Settings(engine="kernel", seeds=2, steps=20, record_every=10, exact_every=10, half_period=10, **how).resolved()
    state = exor.build_ensemble(settings).start([0, 1]).state
    train = jax.jit(exor.build_kernel(settings, [False, True], compiler).train)
    lowered = train.trace(seed_keys([0, 1]), state, jnp.int32(0), jnp.int32(5)).lower(lowering_platforms=(compiler,))
    return set(re.findall(r"custom_call @([\w.$]+)", lowered.as_text()))


def test_erf_equals_scipy():
    x = np.linspace(-6, 6, 10_001).astype(np.float32)
    np.testing.assert_allclose(kernel.erf(jnp.asarray(x)), scipy.special.erf(x.astype(float)), rtol=4e-7)
    slope = jax.vmap(jax.grad(kernel.erf))(jnp.asarray(x))
    np.testing.assert_allclose(slope, 2 / np.sqrt(np.pi) * np.exp(-(x.astype(float) ** 2)), rtol=5e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"layers": 2}, "one layer, not 2"),
        ({"width": 6}, "power of 2, not 6"),
        ({"width": 32}, "supports widths up to 16"),
        ({"zero": [0.2, 0.3, 0.5]}, "7 symbols, not 8"),
        ({"bits": 16}, "up to 15 bits, not 16"),
        ({"bits": 11}, "up to 1,024 visits a step, not 1,842"),
    ],
    ids=str,
)
def test_unsupported_settings_of_the_kernel(how, reason):
    settings = Settings(engine="kernel", **how).resolved()
    assert reason in kernel.why_not(exor.build_model(settings), exor.train_sampler(settings))


def test_cpu_falls_back_to_the_fast_engine():
    settings = Settings(engine="kernel").resolved()
    assert exor.why_no_kernel(settings) == "it needs a GPU or TPU, and the default device is a CPU"
    assert not isinstance(exor.build_ensemble(settings).source, training.TrainSteps)
    assert exor.training_engine(settings) == "fast"


@pytest.mark.parametrize(
    ("how", "reason"),
    [({"gradient_weights": [1.0, 0.5]}, "--gradient_weights"), ({"matmul_precision": "bfloat16"}, "--matmul_precision")],
    ids=str,
)
def test_unsupported_settings_fall_back_to_the_fast_engine(monkeypatch, how, reason):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert reason in exor.why_no_kernel(Settings(engine="kernel", **how).resolved())
    assert exor.why_no_kernel(Settings(engine="kernel").resolved()) is None
