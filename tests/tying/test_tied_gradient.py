"""The tied gradient is the sum over both uses; the oracle is the gradient of the untied model."""

import jax
import numpy as np
import pytest
from autoencoder import OPTIMIZERS, TIE, assert_close, autoencoder, reconstruction, train_stored_once, train_symmetric

from tiejax.tying import (
    Tie,
    equal_leaves,
    store,
    view,
)


def test_tied_gradient_is_the_sum_of_the_untied_gradients(x64):
    params, x = autoencoder()
    stored = store(params, [TIE])
    full = view(stored, [TIE])
    untied = jax.grad(reconstruction)(full, x)
    tied = jax.grad(lambda s: reconstruction(view(s, [TIE]), x))(stored)
    expected = untied["encoder"]["kernel"] + untied["decoder"]["kernel"].T
    np.testing.assert_allclose(tied["encoder"]["kernel"], expected, rtol=1e-13)
    assert tied["decoder"]["kernel"] is None
    np.testing.assert_allclose(tied["decoder"]["bias"], untied["decoder"]["bias"], rtol=1e-13)


def test_owner_gradient_is_that_of_the_source(x64):
    tie = Tie("encoder/kernel", "decoder/kernel", transform="transpose", gradient="owner")
    params, x = autoencoder()
    stored = store(params, [tie])
    untied = jax.grad(reconstruction)(view(stored, [tie]), x)
    tied = jax.grad(lambda s: reconstruction(view(s, [tie]), x))(stored)
    np.testing.assert_allclose(tied["encoder"]["kernel"], untied["encoder"]["kernel"], rtol=1e-13)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("gradient", ["all", "owner"])
def test_symmetrised_equals_stored_once_in_float64(x64, kind, gradient):
    ties = [Tie("encoder/kernel", "decoder/kernel", transform="transpose", gradient=gradient)]
    params, x = autoencoder()
    once = train_stored_once(params, ties, OPTIMIZERS[kind](), x, 100)
    twice = train_symmetric(params, ties, OPTIMIZERS[kind](), x, 100)
    assert_close(twice, once, 1e-12)


def test_symmetrised_equals_stored_once_in_float32():
    params, x = autoencoder()
    once = train_stored_once(params, [TIE], OPTIMIZERS["adamw"](), x, 100)
    twice = train_symmetric(params, [TIE], OPTIMIZERS["adamw"](), x, 100)
    assert_close(twice, once, 1e-5)
    assert equal_leaves(twice, [TIE]) == {"decoder/kernel": True}
