"""What the library makes of a checkpoint that was tied: nothing missing, and the logits and losses of the report."""

import inspect
import re
import string
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from architectures.small_models import architectures, build  # noqa: E402
from library_models import TIED_BY_FLAG, saved  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tiejax.checkpoints.hub.architectures import known  # noqa: E402
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor  # noqa: E402
from tiejax.checkpoints.hub.tokens import find_tokens  # noqa: E402
from tiejax.checkpoints.rewrite.states import last_norm  # noqa: E402
from tiejax.checkpoints.rewrite.text_states import masked_task  # noqa: E402
from tiejax.checkpoints.rewrite.tie import plan, tie  # noqa: E402

pytestmark = pytest.mark.parity

LETTERS = [*string.ascii_lowercase, *string.digits[:9]]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


def loaded(folder):
    (kind,) = transformers.AutoConfig.from_pretrained(folder).architectures
    model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


MANY = [[3 + (4 * row + place) % 37 for place in range(4)] for row in range(26)]  # 104 tokens


def logits(model, rows=None):
    with torch.no_grad():
        return model(torch.arange(3, 11).reshape(2, 4) if rows is None else torch.tensor(rows)).logits


@pytest.mark.parametrize("keep", ["input", "aligned"])
@pytest.mark.parametrize("name", TIED_BY_FLAG)
def test_tied_checkpoint_computes_with_the_shared_table(tmp_path, name, keep):
    """Compare with the untied model after copying the shared table, times its scale, into both places."""
    folder = filled(saved(name, False, tmp_path / "untied"))
    tie(folder, tmp_path / "tied", keep, force=True)
    tied, untied = loaded(tmp_path / "tied"), loaded(folder)
    table, output = tied.get_input_embeddings().weight, untied.get_output_embeddings().weight
    assert table.data_ptr() == tied.get_output_embeddings().weight.data_ptr()
    found, expected = (dict(model.named_parameters()) for model in (tied, untied))
    scale = torch.ones(table.shape[1])
    for key, value in found.items():
        if value.ndim == 1 and any(part in key.lower() for part in ("norm", "ln_f")) and not torch.equal(value, expected[key]):
            offset = float(name.startswith("gemma"))
            scale = (value + offset) / (expected[key] + offset) if key.endswith("weight") else scale
    with torch.no_grad():
        untied.get_input_embeddings().weight.copy_(table)
        output.copy_(table * scale)
    assert (scale != 1).any() == (keep == "aligned")
    torch.testing.assert_close(logits(tied), logits(untied), rtol=1e-4, atol=1e-5)


def filled(folder):
    """Set every bias to random numbers, instead of the zeros it is initialised with, and copies of the input table to it.

    A new BART has separate tables in its encoder and its decoder, which the flag would make one: `tie` refuses that.
    """
    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(5)
    for name, tensor in tensors.items():
        if name.endswith("bias"):
            tensors[name] = torch.randn(tensor.shape, generator=generator)
        if "model.shared.weight" in tensors and name.endswith("embed_tokens.weight"):
            tensors[name] = tensors["model.shared.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def with_words(name, tmp_path):
    """Write a random untied model whose tokens are letters, and a text of letters."""
    folder = filled(saved(name, False, tmp_path / "untied"))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY))
    words = np.random.default_rng(0).choice(LETTERS, 900)
    (tmp_path / "text.txt").write_text(" ".join(words))
    return folder, [VOCABULARY.index(word) for word in words]


def tie_on_text(folder, tmp_path, seed=0):
    """Tie a checkpoint by the mean of its tables; return the report, and the models before and after."""
    report = tie(folder, tmp_path / "tied", "mean", text=str(tmp_path / "text.txt"), states=200, seed=seed, force=True)
    return report, (loaded(folder), loaded(tmp_path / "tied"))


def test_losses_of_a_causal_model_on_a_text(tmp_path):
    folder, ids = with_words("gpt2", tmp_path)
    report, models = tie_on_text(folder, tmp_path)
    assert (report.states, report.whole) == (254, True)
    rows = np.array(ids[:256]).reshape(2, 128)
    log_p = [torch.log_softmax(logits(model, rows)[:, :-1], dim=-1) for model in models]
    for name, log in zip(("loss_before", "loss_after"), log_p, strict=True):
        target_log = log.gather(2, torch.tensor(rows)[:, 1:, None])
        np.testing.assert_allclose(getattr(report.moved, name), -target_log.mean(), rtol=1e-5)
    before, after = log_p
    np.testing.assert_allclose(report.moved.kl, (before.exp() * (before - after)).sum(-1).mean(), rtol=1e-3)


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_losses_of_a_masked_model_on_a_text(tmp_path, name):
    folder, ids = with_words(name, tmp_path)
    report, models = tie_on_text(folder, tmp_path, seed=3)
    task = masked_task(iter(ids), find_tokens(folder), 128, 200, seed=3)
    for role, model in zip(("loss_before", "loss_after"), models, strict=True):
        log = torch.log_softmax(logits(model, task.inputs), dim=-1)
        at = torch.tensor(task.places)[:, :, None]
        target_log = log.gather(1, at.expand(-1, -1, log.shape[-1])).gather(2, torch.tensor(task.targets)[:, :, None].long())
        np.testing.assert_allclose(getattr(report.moved, role), -target_log.mean(), rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "bart", "mbart", "phi", "cohere2", "gemma2", "gpt2", "llama"])
def test_logits_of_given_states_match_the_library(tmp_path, name):
    """Logits of given hidden states, with the biases, factors and caps of each family."""
    folder = filled(saved(name, False, tmp_path / "untied"))
    model, seen = loaded(folder), []
    model.get_output_embeddings().register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    before = logits(model, MANY).flatten(0, -2).double()
    states = seen[0].flatten(0, -2)
    np.save(tmp_path / "h.npy", states.numpy())
    with torch.no_grad():
        model.get_output_embeddings().weight.copy_(model.get_input_embeddings().weight)
    after = logits_of_untouched_states(model, states)
    p, q = (torch.log_softmax(part, dim=-1) for part in (before, after))
    found = plan(folder, None, "input", None, str(tmp_path / "h.npy"), 256, 0).report.moved
    np.testing.assert_allclose(found.kl, (p.exp() * (p - q)).sum(-1).mean(), rtol=1e-3)
    assert found.top1 == float((p.argmax(-1) == q.argmax(-1)).double().mean())
    assert found.kl > 1e-6


def logits_of_untouched_states(model, states):
    """Return the logits of the current head for the hidden states recorded before."""
    model.get_output_embeddings().register_forward_pre_hook(lambda module, inputs: (states.reshape(inputs[0].shape),))
    return logits(model, MANY).flatten(0, -2).double()


def test_offset_of_the_last_normalisation(tmp_path):
    """Of all families whose code adds 1 to a weight: what the module itself computes with a weight of 0 and of 1."""
    seen = set()
    for kind in architectures():
        code = inspect.getsource(sys.modules[kind.__module__])
        if not re.search(r"1(\.0)? \+ self\.weight|self\.weight(\.\w+\(\))? \+ 1", code) or kind.__name__ not in known():
            continue
        model = build(kind, False)
        if model.output is None:
            continue
        tensors = {name: Tensor(name, tmp_path, tuple(value.shape), "F32") for name, value in model.module.named_parameters()}
        names = [name for part in (model.input, model.output) for name in model.names(part)]
        width = model.output.weight.shape[-1]
        norm = last_norm(Checkpoint(tmp_path, model.module.config.to_dict(), tensors, None), names, width)
        if norm is None:
            continue
        module = model.module.get_submodule(norm.weight.name.removesuffix(".weight")).to_empty(device="cpu")
        outputs = []
        for weight in (0.0, 1.0):
            module.load_state_dict(
                {name: torch.full_like(value, weight * (name == "weight")) for name, value in module.state_dict().items()}
            )
            outputs.append(module(torch.ones(1, norm.weight.shape[0]) * torch.arange(1.0, norm.weight.shape[0] + 1)))
        torch.testing.assert_close(outputs[0], (outputs[1] - outputs[0]) * norm.offset, msg=kind.__name__)
        seen.add(kind.config_class.model_type)
    assert {"gemma2", "nemotron", "qwen3_next", "qwen3_5_text", "vaultgemma"} <= seen


SEAMLESS = {
    **{"vocab_size": 40, "t2u_vocab_size": 30, "hidden_size": 16, "max_position_embeddings": 32, "pad_token_id": 0},
    **{f"{part}_layers": 1 for part in ("encoder", "decoder", "speech_encoder", "t2u_encoder", "t2u_decoder", "num_adapter")},
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder", "speech_encoder", "t2u_encoder", "t2u_decoder")},
    **{f"{part}_ffn_dim": 24 for part in ("encoder", "decoder", "t2u_encoder", "t2u_decoder")},
    **{"num_adapter_layers": 1, "speech_encoder_intermediate_size": 24, "feature_projection_input_dim": 20},
    **{"unit_embed_dim": 8, "unit_hifi_gan_vocab_size": 30, "lang_embed_dim": 8, "spkr_embed_dim": 8, "num_langs": 4},
    **{"num_spkrs": 2, "vocoder_num_langs": 4, "vocoder_num_spkrs": 2, "tie_word_embeddings": False},
}


def test_normalisation_of_the_model_whose_head_it_is(tmp_path):
    """SeamlessM4T has a second decoder, of units: an aligned table moves the normalisation of the text's, and no logits."""
    torch.manual_seed(0)
    model = transformers.SeamlessM4TModel(transformers.SeamlessM4TConfig(**SEAMLESS)).eval()
    with torch.no_grad():
        table = torch.nn.init.normal_(model.shared.weight, std=0.3)
        for module in (model.text_encoder, model.text_decoder):
            module.embed_tokens.weight.copy_(table)
        model.t2u_model.lm_head.weight.copy_(model.t2u_model.model.decoder.embed_tokens.weight)
        model.lm_head.weight.copy_(table * (torch.rand(16) + 0.5))
        model.text_decoder.layer_norm.weight.fill_(8.0)
    model.save_pretrained(tmp_path / "untied")
    report = tie(tmp_path / "untied", tmp_path / "tied", "aligned")
    assert not report.any_scale
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("untied", "tied"))
    changed = {name for name in new if not torch.equal(new[name], old[name])}
    assert "text_decoder.layer_norm.weight" in changed
    assert not any("t2u" in name for name in changed), changed
    tokens = torch.arange(3, 11).reshape(2, 4)
    with torch.no_grad():
        before, after = (
            one(input_ids=tokens, decoder_input_ids=tokens.flip(1)).logits for one in (model, loaded(tmp_path / "tied"))
        )
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)
