"""Ties to and from JSON."""

import json

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from tiejax.tying import Cast, Reshape, Scale, Slice, Tie, TieError, resolve, store, ties_from_json, ties_to_json, view

TIES = [
    Tie("embed/table", "head/kernel", transform="transpose"),
    Tie("block_0/*", "block_*/*", gradient="source"),
    Tie("a", "b", gradient=(1.0, 0.25)),
    Tie("a", "c", transform=Cast("bfloat16")),
    Tie("a", "d", transform=Scale(-0.1)),
    Tie("a", "e", transform=Reshape((2, -1))),
    Tie("a", "f", transform=Slice(3, axis=-1)),
    Tie("a", "g", transform=Slice((0, 8, 2))),
    Tie("a", "h", transform=["transpose", Cast("float16"), Slice(0)]),
]


def test_ties_are_the_same_after_json():
    assert ties_from_json(ties_to_json(TIES)) == TIES
    assert ties_from_json(ties_to_json(TIES[0]).encode()) == TIES[:1]


def test_the_form_in_json():
    """Files that were written once must be read by later versions."""
    written = json.loads(ties_to_json([TIES[2], TIES[7], TIES[8]]))
    assert written == [
        {"source": "a", "target": "b", "transform": "identity", "gradient": [1.0, 0.25]},
        {"source": "a", "target": "g", "transform": {"slice": {"index": [0, 8, 2], "axis": 0}}, "gradient": "all"},
        {
            "source": "a",
            "target": "h",
            "transform": ["transpose", {"cast": "float16"}, {"slice": {"index": 0, "axis": 0}}],
            "gradient": "all",
        },
    ]
    assert ties_from_json('[{"source": "a", "target": "b"}]') == [Tie("a", "b")]


def test_lists_are_accepted_as_weights():
    assert Tie("a", "b", gradient=[1.0, 0.25]) == Tie("a", "b", gradient=(1.0, 0.25))
    by_row = np.array([[1.0], [0.5]], np.float32)
    (tie,) = ties_from_json(ties_to_json(Tie("a", "b", gradient=(1.0, by_row))))
    np.testing.assert_array_equal(tie.weights[1], by_row)
    assert Tie("a", "b", gradient=(1.0, np.array([1 + 2j]))) != Tie("a", "b", gradient=(1.0, np.array([1 + 3j])))
    of_tenths = Tie("a", "b", gradient=(1.0, np.float32([[0.1], [0.2]])))
    assert ties_from_json(ties_to_json(of_tenths)) == [of_tenths]
    stored = store({"a": jnp.ones((2, 2)), "b": jnp.ones((2, 2))}, tie)
    grads = jax.grad(lambda stored: view(stored, tie)["b"].sum())(stored)
    assert grads["a"].tolist() == [[1, 1], [0.5, 0.5]]


def test_resolved_ties_are_independent_of_the_tree():
    params = {f"block_{number}": {"w": jnp.zeros(1)} for number in range(3)}
    read = ties_from_json(ties_to_json(resolve(TIES[1], params)))
    assert [(tie.source, tie.target) for tie in read] == [("block_0/w", "block_1/w"), ("block_0/w", "block_2/w")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", r"expected ties as JSON, got '\['"),
        (None, "expected ties as JSON, got None"),
        ("{}", "expected a JSON list of ties, got '{}'"),
        ('[{"source": "a"}]', 'tie 0: expected an object with source, target, transform, gradient, got {"source": "a"}'),
        ('[{"source": "a", "target": "b", "from": "c"}]', "tie 0: expected an object with source, target"),
        ('[{"source": "a", "target": "b"}, ["a", "b"]]', "tie 1: expected an object with"),
        ('[{"source": "a", "target": "b", "transform": "up"}]', "tie 0: tie a -> b: transform must be"),
        (
            '[{"source": "a", "target": "b", "transform": {"rotate": 1}}]',
            'tie 0: unknown transform {"rotate": 1}; expected',
        ),
        ('[{"source": "a", "target": "b", "transform": {"slice": 1}}]', 'tie 0: unknown transform {"slice": 1}'),
        ('[{"source": "a", "target": "b", "transform": {"scale": 0}}]', "tie 0: Scale: expected a finite number other than 0"),
        ('[{"source": 1, "target": "b"}]', "tie 0: source: expected a path"),
        ('[{"source": "a", "target": "b", "gradient": 1}]', "tie 0: tie a -> b: gradient must be"),
        ('[{"source": "a", "target": "b", "gradient": [NaN, 1]}]', "gradient must be 'all', 'source' or two finite weights"),
        (
            '[{"source": "a", "target": "b", "gradient": [1, [1, NaN]]}]',
            "gradient must be 'all', 'source' or two finite weights",
        ),
        ('[{"source": "a", "target": "b", "gradient": [1, [[1], [2, 3]]]}]', "gradient must be 'all', 'source' or two finite"),
        ('[{"source": "a", "target": "b", "transform": {"cast": null}}]', "Cast: expected a floating-point dtype.* got None"),
        ("[" * 100_000, "expected ties as JSON"),
    ],
)
def test_invalid_json(text, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users do not have the type checks of the tests
    with pytest.raises(TieError, match=message):
        ties_from_json(text)


def test_functions_and_traced_weights_cannot_be_written():
    with pytest.raises(TieError, match="tie a -> b: a pair of functions cannot be written to JSON; write the tie as code"):
        ties_to_json(Tie("a", "b", transform=(jnp.exp, jnp.log)))
    with pytest.raises(TieError, match="tie a -> b: traced gradient weights cannot be written to JSON"):
        jax.jit(lambda weight: ties_to_json(Tie("a", "b", gradient=(1.0, weight))))(0.5)
