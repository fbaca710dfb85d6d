"""Closed-form memory estimates of the layer-tying study against the shapes of its models and agents."""

import pydoc_data.topics

import jax
import numpy as np
import pytest
import tokenizers

from tiejax import models, tying
from tiejax.lab.runs import entry
from tiejax.lab.settings import sizes as shared
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying import q_learning, sizes
from tiejax.lab.studies.layer_tying.model import build_model, initial
from tiejax.lab.studies.layer_tying.settings import STUDY, Settings
from tiejax.models import counts

VOCABULARY = 13


def settings_of(**changed):
    fields = {"layers": 3, "width": 8, "heads": 2, "context": 7, "batch_size": 2, "vocab_size": VOCABULARY}
    return Settings(**fields | changed).resolved()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"architecture": "bert", "layers": 2, "feed_forward": 10},
        {"objective": "masked", "architecture": "bert"},
        {"details": "published", "ties": "published", "gradient": "owner"},
        {"width": 16, "dtype": "bfloat16", "layers": 5},
    ],
    ids=str,
)
def test_parameters_and_state(changed):
    """Untied and tied stacks: the shared table counts once, and each parameter has two moments."""
    settings = settings_of(**changed)
    init, ties = initial(settings, build_model(settings, VOCABULARY)), [tying.Tie(*models.TABLE_PATHS)]
    for distinct in (settings.layers, 1):
        owners = np.arange(distinct, dtype=np.int32)
        stored = jax.eval_shape(lambda owners: tying.store(init(jax.random.key(0), owners), ties), owners)
        assert sizes.parameters(settings, VOCABULARY, distinct) == sum(leaf.size for leaf in jax.tree.leaves(stored))
    value_bytes = 2 if settings.dtype == "bfloat16" else 4
    agent = 3 * 4 * sizes.agent_parameters(settings.layers)
    whole = sizes.parameters(settings, VOCABULARY, settings.layers)
    # The state last saved and the parameters of the best step, with a slot for every layer; and the agent.
    assert sizes.need(settings).state == 4 * value_bytes * whole + agent
    assert sizes.need(settings).batches == (settings.k + 1) * 2 * 7 * 2


@pytest.mark.slow
def test_parameters_of_variants():
    """The largest adaptation is added to an untied model; a narrower model has the parameters of its width."""
    variants = {"low-rank": {"map": "cycle", "lora_rank": 2}, "more": {"map": "cycle", "lora_rank": 3},
                "narrow": {"map": "untied", "width": 4}, "wide": {"map": "all-one", "width": 16}}  # fmt: skip
    settings, plain = settings_of(variants=variants, methods=["untied"]), settings_of(methods=["untied"])

    def parameters(name):
        form, owners = settings.form(name), np.unique(settings.variants_by_name[name].owner(3, 1)).astype(np.int32)
        init = initial(settings, build_model(settings, VOCABULARY, form))
        tree = jax.eval_shape(lambda owners: init(jax.random.key(0), owners), owners)
        return sum(leaf.size for leaf in jax.tree.leaves(tree)) - tree["head"]["embedding"].size

    adaptation = counts.lora(3, 8, 32, 3)
    assert parameters("more") == sizes.parameters(settings, VOCABULARY, 1) + adaptation
    assert parameters("low-rank") == sizes.parameters(settings, VOCABULARY, 1) + counts.lora(3, 8, 32, 2)
    assert parameters("narrow") == sizes.parameters(settings_of(width=4), VOCABULARY, 3)
    assert sizes.parameters(settings, VOCABULARY, 1, "more") == parameters("more")
    # On the host, the largest model with a slot for every layer; on the device, the largest one as it is.
    assert sizes.need(settings).state == 4 * 4 * sizes.parameters(settings_of(width=16), VOCABULARY, 3)
    del variants["wide"]
    settings = settings_of(variants=variants, methods=["untied"])
    assert sizes.need(settings).state == sizes.need(plain).state + 4 * 4 * adaptation


@pytest.mark.parametrize("layers", [2, 3, 12])
def test_agents(layers):
    network = jax.eval_shape(lambda: q_learning.init(jax.random.key(0), layers))
    assert sizes.agent_parameters(layers) == sum(leaf.size for leaf in jax.tree.leaves(network))


def test_records_grow_with_steps_and_methods():
    few, many = settings_of(methods=["untied"], steps=10), settings_of(methods=["untied", "all-one"], steps=1000, seeds=3)
    assert sizes.need(few).records == 10 * 20
    assert sizes.need(many).records == 2 * 3 * 1000 * 20
    classes, grid = {"methods": ["untied", "all-one"], "steps": 10}, {"rates": [0.1, 0.2, 0.4], "rate_seeds": 3}
    full = settings_of(**classes, **grid)  # two classes with three rates, three seeds each
    assert sizes.need(full).records == 2 * 10 * 20 + 2 * 3 * 3 * 10 * 20
    halved = settings_of(**classes, **grid, table_factors=[1.0, 2.0])  # six pairs with one seed, four with the two others
    assert sizes.need(halved).records == 2 * 10 * 20 + 2 * (6 + 4 * 2) * 10 * 20
    agent = settings_of(methods=["agent"], steps=9, k=2, **grid)
    assert sizes.need(agent).records == (1 + 3 * 3) * (9 * 20 + 5 * (3 * 8 + 8 + 3 * 4 + 3 * 4))


def test_memory_with_a_given_tokenizer_is_checked_before_the_run_directory(tmp_path, monkeypatch):
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(topics[:6]))
    files = ["--corpus", f"{tmp_path}/corpus.txt", "--data_dir", f"{tmp_path}/prepared", "--out", f"{tmp_path}/run", "--quiet"]
    small = "--layers 2 --width 64 --heads 2 --context 12 --batch_size 1 --methods [untied] --steps 2"
    needed = sizes.need(Settings(layers=2, width=64, context=12, batch_size=1, methods=["untied"], steps=2).resolved(), 400)
    monkeypatch.setattr(shared, "machine_memory", lambda: 2 * needed.total)
    monkeypatch.setattr("tiejax.lab.runs.train.stop_flag", lambda: pytest.fail("the input was accepted"))
    words = tmp_path / "tokenizer.json"
    words.write_text(tokenizer_of(tmp_path, 4000))
    with pytest.raises(BadInput, match=r"^--.*the run needs at least .*this machine has"):
        entry.main(STUDY, [*files, *small.split(), "--tokenizer", str(words)])
    assert not (tmp_path / "run").exists()


def tokenizer_of(folder, size):
    """Return a byte-level tokenizer with `size` tokens, as JSON."""
    vocabulary = {
        token: number for number, token in enumerate(["<|endoftext|>", *tokenizers.pre_tokenizers.ByteLevel.alphabet()])
    }
    vocabulary |= {f"unused {number}": number for number in range(len(vocabulary), size)}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.add_special_tokens(["<|endoftext|>"])
    return model.to_str()
