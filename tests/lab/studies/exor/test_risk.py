"""Exact risk against a slow loop over every visit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exor_visits import every_visit

from tiejax.lab.studies.exor.contexts import all_contexts, asking_pairs
from tiejax.lab.studies.exor.recorders import ExactRisk, Expectations
from tiejax.lab.studies.exor.task import EXor, split, strings


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("asked_only", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_exact_risk_against_a_slow_loop(x64, ordered, asked_only, with_bias):
    """A model of the context's multiset: expectations by a loop over every visit; blocks that do not divide the contexts."""
    task = EXor(4, (0.25, 0.75), (0.4, 0.6))
    contexts = all_contexts(task, ordered)
    generator = np.random.default_rng(0)
    embedding, output = generator.normal(size=(2, task.vocabulary, 3))
    bias = generator.normal(size=task.vocabulary) if with_bias else np.zeros(task.vocabulary)
    outcomes = task.asked if asked_only else None

    def encode(params, tokens):
        return jnp.tanh(params["embed"][tokens].sum(1))

    asking = asking_pairs(task, contexts)
    pairs = {name: symbols for name, (symbols, _) in asking.items()}
    expected = Expectations(contexts.target, contexts.weight, {name: share for name, (_, share) in asking.items()})
    expected = jax.tree.map(jnp.asarray, expected)
    head = {"embedding": jnp.asarray(output)} | ({"bias": jnp.asarray(bias)} if with_bias else {})
    params = {"embed": jnp.asarray(embedding), "head": head}

    found, whole = (
        jax.jit(ExactRisk(encode, contexts.tokens, pairs, block, outcomes))(params, expected) for block in (7, 10**6)
    )
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-13), found, whole)

    def state(context):
        return np.tanh(embedding[list(context)].sum(0))

    for member, rows in enumerate(split(task.bits).values()):
        loss = accuracy = 0.0
        for context, _, target, weight in every_visit(task, rows):
            logits = output @ state(context) + bias
            if asked_only:  # the symbols 4, 5 and 6 are even, odd and the mask
                logits[4:] = -np.inf
            loss -= weight * (logits[target] - np.log(np.exp(logits).sum()))
            accuracy += weight * (logits.argmax() == target)
        np.testing.assert_allclose(found["cross_entropy"][member], loss, rtol=1e-12)
        np.testing.assert_allclose(found["accuracy"][member], accuracy, rtol=1e-12)

    # The zero pair: symbols 0 and 1.
    asked = [state(context) for context, _, target, _ in every_visit(task, strings(task.bits)) if target in task.used["zero"]]
    gap = min(np.linalg.norm(h) for h in asked) * np.linalg.norm(output[1] - output[0])
    np.testing.assert_allclose(found["gap_zero"], gap, rtol=1e-12)
