"""The torch sides of the encoder's benchmark train the same model and loss as ours, and count real tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import tokenizers
import torch
from torch.nn import functional

from experiments.bench.torch_encoder import Counting, Job, MaskedLM, Packed, bert, masked, read, train_by_library, train_by_loop
from tiejax import models, tying
from tiejax.models import bert as ours
from tiejax.models.shapes import Shape
from tiejax.pretraining.loss import Head
from tiejax.pretraining.masked import masked_loss
from tiejax.text.masking import Masking
from tiejax.text.tokenizer import SPECIAL, Vocabulary, vocabulary
from tiejax.text.twins import Twins

pytestmark = pytest.mark.parity

SHAPE, LENGTH, SIZE = Shape(16, 16, 16, 2, 2, coupled=True), 24, 40
TIES = [tying.Tie(*models.TABLE_PATHS)]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return a job with sentences of random words and a tokenizer of these words."""
    words = [*SPECIAL, *(f"w{number}" for number in range(SIZE - len(SPECIAL)))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(words, range(SIZE), strict=True)), "[UNK]"))
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(file))
    known: Vocabulary = vocabulary(tokenizer)
    rng = np.random.default_rng(0)
    sentences = [[known.cls, *rng.integers(5, SIZE, rng.integers(1, 20)), known.sep] for _ in range(200)]
    return Job(
        shape=SHAPE,
        ids=np.concatenate(sentences).astype(np.uint16),
        offsets=np.concatenate([[0], np.cumsum([len(one) for one in sentences])]).astype(np.int64),
        vocabulary=known,
        tokenizer=str(file),
        rows=3,
        row_length=LENGTH,
        sentences=6,
        threads=1,
        learning_rate=1e-3,
        weight_decay=0.01,
        warm_up=10,
        clip=1.0,
    )


def in_torch(params):
    """Return the loop's model with our parameters."""
    model = MaskedLM(SHAPE, SIZE, LENGTH).double()
    stack, head = params["encoder"]["layers"], params["head"]
    state = {
        "embed.weight": params["embed"]["embedding"],
        "positions.weight": params["positions"]["embedding"],
        "types.weight": params["types"]["embedding"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "dense.weight": head["dense"]["kernel"].T,
        "dense.bias": head["dense"]["bias"],
        "head_norm.weight": head["norm"]["scale"],
        "head_norm.bias": head["norm"]["bias"],
        "bias": head["bias"],
    }
    maps = {"qkv": "qkv", "out": "out", "inner": "feed_forward_in", "outer": "feed_forward_out"}
    norms = {"attention_norm": "attention_norm", "norm": "feed_forward_norm"}
    for layer in range(SHAPE.layers):
        for theirs, name in maps.items():
            state[f"layers.{layer}.{theirs}.weight"] = stack[name]["kernel"][layer].T
            state[f"layers.{layer}.{theirs}.bias"] = stack[name]["bias"][layer]
        for theirs, name in norms.items():
            state[f"layers.{layer}.{theirs}.weight"] = stack[name]["scale"][layer]
            state[f"layers.{layer}.{theirs}.bias"] = stack[name]["bias"][layer]
    model.load_state_dict({name: torch.tensor(np.array(leaf)) for name, leaf in state.items()})
    return model


def random_params(model):
    """Return tied parameters that are random everywhere, norms and biases included."""
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    leaves, treedef = jax.tree.flatten(tying.store(params, TIES))
    rng = np.random.default_rng(1)
    return tying.view(treedef.unflatten([leaf + 0.3 * rng.standard_normal(leaf.shape) for leaf in leaves]), TIES)


def test_loss_of_the_loop_equals_ours(x64, job):
    """Loss and gradients for the same weights, packed rows and masks; the tied table's gradient sums over its uses."""
    model = ours.build(SHAPE, SIZE, LENGTH)
    params = random_params(model)
    rows = read(job, 1)[0]
    tokens, segments = rows.tokens.numpy(), rows.segments.numpy()
    masking = Masking(Twins(SIZE, (), (), ()), job.vocabulary.special, job.vocabulary.mask, slots=40)
    visit = masking.visit(jnp.asarray(tokens), jnp.asarray(segments), jnp.arange(len(tokens)), jax.random.key(2))
    number = int(visit.weight.sum())
    assert number > 5

    def loss(stored):
        params = tying.view(stored, TIES)
        states = model.apply({"params": params}, visit.tokens, segments=visit.segments, method="encode")
        head = Head(
            params["head"]["embedding"],
            lambda x: model.apply({"params": params}, x, method="transform"),
            params["head"]["bias"],
        )
        return masked_loss(states, head, visit, jnp.ones(len(tokens)))

    expected, gradient = jax.value_and_grad(loss)(tying.store(params, TIES))
    theirs = in_torch(params)
    slots, targets = (torch.tensor(np.array(leaf[:number]), dtype=torch.long) for leaf in (visit.slot, visit.target))
    shown = torch.tensor(np.array(visit.tokens), dtype=torch.long)
    found = functional.cross_entropy(theirs(shown, rows.segments, rows.positions, slots), targets)
    found.backward()
    assert found.item() == pytest.approx(float(expected), rel=1e-12)
    np.testing.assert_allclose(theirs.embed.weight.grad, gradient["embed"]["embedding"], rtol=0, atol=1e-12)
    qkv = np.stack([layer.qkv.weight.grad.numpy().T for layer in theirs.layers])
    np.testing.assert_allclose(qkv, gradient["encoder"]["layers"]["qkv"]["kernel"], rtol=0, atol=1e-12)


def test_all_sides_have_the_same_number_of_parameters(job):
    stored = tying.store(random_params(ours.build(SHAPE, SIZE, LENGTH)), TIES)
    number = sum(leaf.size for leaf in jax.tree.leaves(stored))
    for model in (MaskedLM(SHAPE, SIZE, LENGTH), bert(job)):
        assert sum(parameter.numel() for parameter in model.parameters()) == number


def test_masking_is_that_of_bert(job):
    torch.manual_seed(1)
    ordinary = torch.from_numpy(~np.isin(np.arange(SIZE), job.vocabulary.special))
    counts = np.zeros(4)
    for rows in read(job, 100):
        shown, slots, targets = masked(rows, ordinary, job.vocabulary)
        assert (targets == rows.tokens.flatten()[slots]).all()
        assert ordinary[targets].all()
        at_slots = shown.flatten()[slots]
        untouched = torch.ones(shown.numel(), dtype=torch.bool)
        untouched[slots] = False
        assert (shown.flatten()[untouched] == rows.tokens.flatten()[untouched]).all()
        unchanged, by_mask = (at_slots == targets).sum(), (at_slots == job.vocabulary.mask).sum()
        counts += [len(slots), int(ordinary[rows.tokens].sum()), int(by_mask), int(unchanged)]
    predicted, positions, by_mask, unchanged = counts
    assert predicted / positions == pytest.approx(0.15, abs=0.01)
    assert by_mask / predicted == pytest.approx(0.8, abs=0.03)
    assert unchanged / predicted == pytest.approx(0.1, abs=0.03)


def test_positions_restart_in_every_sentence():
    segments = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 0, 0]], np.uint16)
    packed = Packed.of(np.zeros_like(segments), segments)
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 0, 1]]


def test_padding_is_not_counted(job):
    """An epoch of packed rows holds every token of every sentence once."""
    rows = read(job._replace(rows=1), 400)
    number, tokens = 0, 0
    while tokens < len(job.ids):
        tokens += int((rows[number].segments > 0).sum())
        number += 1
    assert tokens == len(job.ids)
    collate = Counting(lambda examples: {"attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])})
    collate([])
    collate([])
    assert collate.tokens == 10


@pytest.mark.parametrize("make", [train_by_loop, train_by_library])
def test_training_takes_the_requested_time(make, job, capfd):
    train = make(job)
    for _ in range(2):
        work = train(0.05)
        assert 0.05 <= work.seconds < 5
        assert work.tokens > 0
    assert capfd.readouterr().out == ""
