"""Ties resolved once: random trees against an independent expansion of patterns, and `Ties` as a static argument."""

import itertools
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.tying import Tie, TieError, Ties, resolve, store, symmetrise, ties_to_json, untie, view

TOPS, LEAVES = ("enc", "dec", "mid"), ("w", "b", "norm/scale")


def random_tree(rng):
    """Return {path: 2 x 2 array or None}; the nested tree follows from the paths."""
    flat = {}
    for top, block, leaf in itertools.product(TOPS, range(3), LEAVES):
        if rng.random() < 0.95:
            flat[f"{top}/{block}/{leaf}"] = None if rng.random() < 0.02 else rng.normal(size=(2, 2)).astype(np.float32)
    return {path: flat[path] for path in sorted(flat, key=lambda path: path.split("/"))}  # the order of a nested dictionary


def nested(flat):
    tree = {}
    for path, leaf in flat.items():
        *keys, last = path.split("/")
        inner = tree
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = leaf
    return tree


def without_none(tree):
    """Drop keys that hold None, and then empty dictionaries, as formats of flat tensors do."""
    inner = {key: without_none(leaf) for key, leaf in tree.items() if leaf is not None} if isinstance(tree, dict) else tree
    return {key: leaf for key, leaf in inner.items() if not isinstance(leaf, dict) or leaf} if isinstance(tree, dict) else tree


def random_tie(rng):
    """Return (source, target, transposed) of one of the forms that users write."""
    top, other = rng.choice(TOPS, 2)
    block, to = rng.integers(3, size=2)
    leaf, another = rng.choice(LEAVES, 2)
    source, target = [
        (f"{top}/{block}/{leaf}", f"{other}/{to}/{another}"),
        (f"{top}/{block}/*", f"{other}/{to}/*"),
        (f"{top}/*", f"{other}/*"),
        (f"{top}/*/{leaf}", f"{other}/*/{another}"),
        (f"{top}/{block}/{leaf}", f"{other}/*/{another}"),
        (f"{top}/{block}/*", f"{other}/*/*"),
    ][rng.integers(6)]
    return str(source), str(target), bool(rng.random() < 0.3)


def expand(source, target, flat):
    """Expand a tie by regular expressions over the paths of the full tree; None if nothing matches or None is matched."""
    arrays = [path for path, leaf in flat.items() if leaf is not None]
    free = target.count("*") - source.count("*")
    pairs = []
    for path in arrays if "*" in source else [source]:
        match = re.fullmatch("(.*)".join(map(re.escape, source.split("*"))), path)
        if match is None:
            continue
        runs = ["[^/]*"] * free + [re.escape(group) for group in match.groups()]
        pieces = [re.escape(piece) for piece in target.split("*")]
        wanted = "".join(itertools.chain(*itertools.zip_longest(pieces, runs, fillvalue="")))
        if free:
            pairs += [(path, found) for found in flat if re.fullmatch(wanted, found) and found != path]
        else:
            pairs.append((path, re.sub(r"\\(.)", r"\1", wanted)))
    return pairs if pairs and all(flat.get(name) is not None for pair in pairs for name in pair) else None


def expected(ties, flat):
    """Return {target: (stored leaf, transposed)} in the order of the ties, or None if the ties do not fit the tree.

    Also return whether a pattern matches the target of another tie.
    """
    links = {}
    for source, target, transposed in ties:
        pairs = expand(source, target, flat)
        if pairs is None or any(to in links for _, to in pairs) or len({to for _, to in pairs}) < len(pairs):
            return None, False
        links |= {to: (path, transposed) for path, to in pairs}
    roots = {}
    for target in links:
        root, odd = target, False
        for _ in links:
            if root in links:
                root, odd = links[root][0], odd != links[root][1]
        if root in links:
            return None, False  # a cycle
        roots[target] = (root, odd)
    return roots, any(links[to][0] in links for to in links) and all("*" in source for source, _, _ in ties)


def cases(number):
    """Yield trees with ties: as many invalid as valid ones, and as many with patterns that match targets of other ties."""
    rng, found = np.random.default_rng(0), dict.fromkeys(("invalid", "valid", "chained"), 0)
    while min(found.values()) < number:
        flat, ties = random_tree(rng), [random_tie(rng) for _ in range(rng.integers(1, 5))]
        roots, chained = expected(ties, flat)
        kind = "invalid" if roots is None else "chained" if chained else "valid"
        found[kind] += 1
        if found[kind] <= number:
            yield flat, [Tie(source, target, "transpose" if odd else "identity") for source, target, odd in ties], roots


def assert_equal(full, flat, roots):
    wanted = flat | {to: flat[root].T if odd else flat[root] for to, (root, odd) in roots.items()}
    jax.tree.map(np.testing.assert_array_equal, full, nested(wanted))


@pytest.mark.slow
def test_random_trees():
    """Stored parameters have None at the targets only; every view gives each target its root's values, in every form."""
    for flat, ties, roots in cases(60):
        if roots is None:
            with pytest.raises(TieError):
                store(nested(flat), ties)
            continue
        params = nested(flat)
        stored = store(params, ties)
        jax.tree.map(np.testing.assert_array_equal, stored, nested(flat | dict.fromkeys(roots)))
        resolved = resolve(ties, params)
        assert [(tie.target, (tie.source, tie.transform == "transpose")) for tie in resolved] == list(roots.items())
        for given in (ties, resolved):
            assert_equal(view(stored, given), flat, roots)
            assert resolve(given, stored) == resolved
        if all(leaf is not None for leaf in flat.values()):
            dropped = without_none(stored)
            assert_equal(view(dropped, resolved), flat, roots)
            if not any(tie.target.count("*") > tie.source.count("*") for tie in ties):  # which do not name what is missing
                assert_equal(view(dropped, ties), flat, roots)


def test_a_pattern_after_another_tie():
    """A bias that is a target of the first tie is the source of the second."""
    layer = {"w": jnp.ones(2), "bias": jnp.zeros(2)}
    params = {"enc": [layer, layer], "dec": [{"bias": jnp.full(2, 3.0)}, {"bias": jnp.full(2, 4.0)}]}
    ties = [Tie("enc/0/*", "enc/1/*"), Tie("enc/*/bias", "dec/*/bias")]
    stored = store(params, ties)
    assert stored["dec"] == [{"bias": None}, {"bias": None}]
    full = view(stored, ties)
    assert [block["bias"].tolist() for block in (*full["enc"], *full["dec"])] == [[0, 0]] * 4


def test_none_is_no_target():
    """A bias that a model does not have would be added to it, and parameters that are stored would be stored again."""
    params, tie = {"a": {"w": jnp.ones(2), "bias": jnp.ones(2)}, "b": {"w": jnp.ones(2), "bias": None}}, Tie("a/*", "b/*")
    with pytest.raises(TieError, match="tie a/bias -> b/bias: b/bias is None; pass the full tree"):
        store(params, tie)
    with pytest.raises(TieError, match="tie a/w -> b/w: b/w is None; pass the full tree"):
        store(store(params, Tie("a/w", "b/w")), Tie("a/w", "b/w"))


def test_a_link_that_is_ended_alone():
    params = {name: jnp.ones(2) for name in "abc"}
    stored = store(params, [Tie("a", "b"), Tie("b", "c")])
    with pytest.raises(
        TieError, match=r"tie b -> c: b is None; .* write the tie from the leaf that b reads: Tie\(\.\.\., 'c'\)"
    ):
        view(stored, Tie("b", "c"))


def two():
    params = {"embed": jnp.arange(6.0).reshape(3, 2), "head": jnp.ones((2, 3)), "bias": jnp.zeros(3)}
    return params, resolve(Tie("embed", "head", transform="transpose"), params)


def test_ties_are_static_in_compiled_functions():
    """They are arguments, results and parts of trees without leaves; equal ties compile once."""
    params, ties = two()
    traces = []

    @jax.jit
    def loss(state):
        traces.append(None)
        full = view(state["stored"], state["ties"])
        return (full["embed"] @ full["head"]).sum(), state["ties"]

    stored = store(params, ties)
    value, returned = loss({"stored": stored, "ties": ties})
    table = np.arange(6.0).reshape(3, 2)
    assert value == (table @ table.T).sum()
    assert returned == ties
    loss({"stored": stored, "ties": resolve(Tie("embed", "head", transform="transpose"), params)})
    assert len(traces) == 1
    grads, _ = jax.grad(loss, has_aux=True)({"stored": stored, "ties": ties})
    assert jax.tree.structure(grads["stored"]) == jax.tree.structure(stored)
    assert len(jax.tree.leaves(ties)) == 0


def test_ties_are_accepted_wherever_ties_are():
    import optax

    params, ties = two()
    optimizer, stored = optax.adamw(1e-2), store(params, ties)
    full, _ = untie(optimizer, stored, optimizer.init(stored), ties)
    np.testing.assert_array_equal(full["head"], params["embed"].T)
    assert symmetrise(params, ties, True)["embed"][0].tolist() == [1, 2]
    assert ties_to_json(ties) == ties_to_json(list(ties))
    assert pickle.loads(pickle.dumps(ties)) == ties
    assert repr(ties).startswith("Ties((Tie(source='embed'")


def test_array_weights_are_compared_by_value():
    params, _ = two()
    one, same, other = (resolve(Tie("embed", "head", "transpose", (1.0, np.full((3, 1), b))), params) for b in (0.5, 0.5, 0.25))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    grads = jax.jit(lambda stored, ties: jax.grad(lambda s: view(s, ties)["head"].sum())(stored))(store(params, one), one)
    assert grads["embed"].tolist() == [[0.5, 0.5]] * 3


@pytest.mark.parametrize("given", [[Tie("a/*", "b/*")], [Tie("a", "b"), Tie("b", "c")], [Tie("a", "c"), Tie("b", "c")]])
def test_ties_that_are_not_resolved(given):
    with pytest.raises(TieError, match=r"is not resolved, or another tie has its target; write resolve\(ties, params\)"):
        Ties(given)


def test_resolved_ties_are_checked_against_the_tree():
    params, ties = two()
    with pytest.raises(TieError, match="no leaf head; did you mean embed, bias"):
        view({"embed": params["embed"], "bias": None}, ties)
    with pytest.raises(TieError, match=r"shapes or dtypes differ: embed \(4, 2\) float32, after transpose"):
        store(params | {"embed": jnp.ones((4, 2))}, ties)
    with pytest.raises(TieError, match="head still holds an array"):
        view(params, ties)
    grown = view(store(params, ties) | {"embed": jnp.ones((5, 2))}, ties)  # the target follows
    assert grown["head"].shape == (2, 5)


class Unregistered:
    pass


def test_trees_that_are_one_leaf():
    for tie in (Tie("a", "b"), Tie("a/*", "b/*")):
        with pytest.raises(TieError, match=r"the tree is a single leaf \(Unregistered\): pass a pytree of arrays, or register"):
            store(Unregistered(), tie)


def test_a_tie_within_one_leaf():
    with pytest.raises(TieError, match=r"w would read itself; layers in one stacked leaf are tied by an owner vector"):
        store({"w": jnp.ones((2, 3))}, Tie("w", "w"))


@pytest.mark.parametrize("tie", [Tie("l0", "l1"), Tie("*0", "*1")], ids=str)
def test_a_leaf_called_value_is_not_the_only_one_of_its_parent(tie):
    """Only the variables of NNX, which hold nothing else, are named without `/value`."""
    attention = {"query": np.ones(2), "key": np.ones(2), "value": np.ones(2)}
    with pytest.raises(TieError, match="no leaf"):
        store({"l0": attention, "l1": attention}, tie)


def test_a_pickled_tie_has_the_hash_of_its_process(tmp_path):
    code = (
        "import pickle, sys; from tiejax.tying import Tie, resolve; import numpy as np\n"
        "ties = resolve(Tie('a', 'b'), {'a': np.ones(2), 'b': np.ones(2)}); hash(ties)\n"
        "pickle.dump(ties, open(sys.argv[1], 'wb')) if len(sys.argv) > 1 else None\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "ties"], check=True)
    found = pickle.loads((tmp_path / "ties").read_bytes())
    assert hash(found) == hash(resolve(Tie("a", "b"), {"a": np.ones(2), "b": np.ones(2)}))
