"""Checkpoints, states and texts that no sound report can be made of: refused in one line, without a warning or a folder."""

import json

import ml_dtypes
import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from processes import end, start_python
from safetensors.numpy import load_file

from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.rewrite import states as of_states
from tiejax.checkpoints.rewrite.last_norm import last_norm
from tiejax.checkpoints.rewrite.one_table import Distances
from tiejax.checkpoints.rewrite.tie_report import Moved, Report
from tiejax.lab.commands import tie as command
from tiejax.lab.settings.command_line import BadInput

EMBED, HEAD, NORM, BIAS = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "lm_head.bias"
CONFIG = {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": 23}
WEIGHT = np.array([1.0, 2.0, 0.5, 1.5], np.float32)
EQUAL = {EMBED: values(), HEAD: values(), NORM: WEIGHT}
NEAR = {**EQUAL, HEAD: values() + 1e-4 * values(seed=1)}
HUGE = {EMBED: 1e30 * values(), HEAD: 1e30 * values(seed=1), NORM: 1e9 * WEIGHT}


def refused(folder, tmp_path, words, *flags):
    """One line that holds these words, nothing written though it is forced, and no warning: pytest makes errors of them."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadInput, match=words) as error:
        command.main([str(folder), str(tmp_path / "out"), "--force", *map(str, flags)])
    assert len(str(error.value).splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def said(folder, capsys, *flags):
    assert command.main([str(folder), "--json", *map(str, flags)]) == 0
    return json.loads(capsys.readouterr().out)


# Numbers that are none.


@pytest.mark.parametrize("keep", ["input", "aligned"])
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({**EQUAL, NORM: WEIGHT * np.nan}, f"{NORM} holds a value that is not finite"),
        ({**EQUAL, NORM: np.full(4, 1e300)}, f"{NORM} holds a value that is not finite in float32"),
        ({**EQUAL, NORM: 1.5e38 * WEIGHT}, f"{NORM} gives states that are not finite"),
        ({**EQUAL, "model.norm.bias": WEIGHT + np.inf}, "model.norm.bias holds a value that is not finite"),
        ({**EQUAL, "model.norm.bias": values(3, 1)[:, 0]}, r"model.norm.bias is \[3\] F32; it must be \[4\]"),
        ({**EQUAL, NORM: np.ones(4, np.int64)}, rf"{NORM} is \[4\] I64; it must be \[4\], one of float64"),
        ({**EQUAL, NORM: np.ones(4, bool)}, rf"{NORM} is \[4\] BOOL"),
        ({**EQUAL, NORM: np.ones(4, ml_dtypes.float8_e4m3fn)}, rf"{NORM} is \[4\] F8_E4M3"),
        ({**EQUAL, BIAS: values(23, 1)[:, 0] + np.nan}, f"{BIAS} holds a value that is not finite"),
        ({**EQUAL, BIAS: np.ones(23, ml_dtypes.float8_e4m3fn)}, rf"{BIAS} is \[23\] F8_E4M3"),
        ({**EQUAL, BIAS: np.ones(22, np.float32)}, rf"{BIAS} is \[22\] F32; it must be \[23\]"),
        ({**EQUAL, EMBED: values() * np.inf}, "model.embed_tokens.weight holds a value that is not finite"),
        (HUGE, "lm_head.weight: gives logits that are not finite in float32"),
    ],
    ids=range(13),
)
def test_tensors_that_are_not_finite_numbers(tmp_path, tensors, words, keep):
    refused(checkpoint(tmp_path / "c", tensors, CONFIG), tmp_path, words, "--keep", keep)


@pytest.mark.parametrize(
    ("kind", "key"),
    [("cohere", "logit_scale"), ("cohere2", "logit_scale"), ("gemma2", "final_logit_softcapping")],
)
@pytest.mark.parametrize("number", ["NaN", "1e400", "-1e400", "1" + "0" * 400, "0", "-1", "1e-320", '"x"', "[1]", "true"])
def test_scales_of_logits_that_are_none(tmp_path, kind, key, number):
    folder = checkpoint(tmp_path / "c", EQUAL, {"model_type": kind, "tie_word_embeddings": False})
    (folder / "config.json").write_text((folder / "config.json").read_text()[:-1] + f', "{key}": {number}}}')
    refused(folder, tmp_path, f"config.json: {key}: must be a finite number above 0, got ")


def test_a_scale_that_another_family_has_does_not_count(tmp_path):
    """A llama whose configuration would make every logit the same, were it a cohere's."""
    tensors = {**EQUAL, HEAD: values(seed=1)}
    small = {"logit_scale": 1e-6, "logits_scaling": 1e6, "final_logit_softcapping": 1e-6}
    with pytest.raises(BadInput, match="logits move by"):
        command.main([str(checkpoint(tmp_path / "c", tensors, CONFIG | small)), str(tmp_path / "out")])


@pytest.mark.parametrize(("kl", "top1"), [(np.nan, 1.0), (0.0, np.nan), (0.02, 1.0), (0.0, 0.9)])
def test_what_is_no_number_does_not_pass(kl, top1):
    report = Report("input", "differ", Distances(0.0, 0.1), "drawn", 1, False, Moved(kl, top1, None, None), 0)
    assert "logits move by" in report.obstacle()


@pytest.mark.parametrize("keep", ["output", "mean", "aligned"])
def test_a_table_that_is_too_large_for_the_dtype_of_the_file(tmp_path, keep):
    tensors = {EMBED: values(dtype=np.float16), HEAD: 1e7 * values(seed=1), NORM: WEIGHT}
    words = f"{EMBED if keep != 'aligned' else NORM}: would hold a value that is too large for float16"
    if keep == "aligned":  # where the scale takes the size, and the norm cannot
        tensors = {EMBED: values(), HEAD: 10 * values(), NORM: (3e4 * WEIGHT).astype(np.float16)}
    refused(checkpoint(tmp_path / "c", tensors, CONFIG), tmp_path, words, "--keep", keep)


def test_equal_tables_of_huge_numbers_have_a_mean(tmp_path, capsys):
    """A sum of both overflows, their mean does not."""
    one = np.where(values() > 0, 3e38, -3e38).astype(np.float32)
    folder = checkpoint(tmp_path / "c", {EMBED: one, HEAD: one, NORM: 1e-38 * WEIGHT}, CONFIG)
    found = said(folder, capsys, "--keep", "mean")
    assert (found["distances"], found["moved"]["kl"]) == ({"input": 0.0, "output": 0.0}, 0.0)


# Biases.


def with_biases(tmp_path, **biases):
    names = {"cls.predictions.bias": np.zeros(23, np.float32), "cls.predictions.decoder.bias": np.zeros(23, np.float32)}
    tensors = {"bert.embeddings.word_embeddings.weight": values(), "cls.predictions.decoder.weight": values(seed=1)}
    return checkpoint(tmp_path / "c", tensors | names | biases, {"model_type": "bert", "tie_word_embeddings": False})


def spiked(shape=(23,)):
    """A bias under which one token is the likeliest, whatever the states."""
    return np.where(np.arange(23) == 3, 100, 0).astype(np.float32).reshape(shape)


def test_an_untied_bert_adds_the_bias_of_its_decoder(tmp_path, capsys):
    assert said(with_biases(tmp_path), capsys)["moved"]["top1"] < 1
    assert said(with_biases(tmp_path, **{"cls.predictions.decoder.bias": spiked()}), capsys)["moved"]["top1"] == 1
    assert said(with_biases(tmp_path, **{"cls.predictions.bias": spiked()}), capsys)["moved"]["top1"] < 1


def test_the_bias_of_bart_counts(tmp_path, capsys):
    tensors = {"model.shared.weight": values(), HEAD: values(seed=1)}
    config = {"model_type": "bart", "tie_word_embeddings": False}
    assert said(checkpoint(tmp_path / "c", tensors, config), capsys)["moved"]["top1"] < 1
    with_bias = checkpoint(tmp_path / "c", {**tensors, "final_logits_bias": spiked((1, 23))}, config)
    assert said(with_bias, capsys)["moved"]["top1"] == 1


def test_a_vocabulary_as_large_as_the_width(tmp_path, capsys):
    """The bias is of the tokens, however their number compares with the width."""
    square = {EMBED: values(4), HEAD: values(4), NORM: WEIGHT, BIAS: values(4, 1)[:, 0]}
    assert said(checkpoint(tmp_path / "c", square, CONFIG | {"vocab_size": 4}), capsys)["moved"]["kl"] == 0
    folder = checkpoint(tmp_path / "d", {**EQUAL, BIAS: values(4, 1)[:, 0]}, CONFIG | {"vocab_size": 4})
    refused(folder, tmp_path, rf"{BIAS} is \[4\] F32; it must be \[23\]")


# The last layer normalisation.


@pytest.mark.parametrize(
    ("config", "offset"),
    [
        ({"model_type": "gemma"}, 1),
        ({"model_type": "gemma2"}, 1),
        ({"model_type": "gemma3", "text_config": {}}, 1),
        ({"model_type": "gemma3_text"}, 1),
        ({"model_type": "paligemma", "text_config": {"model_type": "gemma"}}, 1),
        ({"model_type": "gemma3n"}, 0),
        ({"model_type": "gemma3n_text"}, 0),
        ({"model_type": ["gemma"]}, 0),
        ({"model_type": "llama"}, 0),
    ],
)
def test_which_norms_multiply_by_weight_plus_one(tmp_path, config, offset):
    assert last_norm(open_checkpoint(checkpoint(tmp_path / "c", EQUAL, config)), 4).offset == offset


def test_gemma3n_multiplies_by_the_weight_alone(tmp_path):
    config = {"model_type": "gemma3n_text", "tie_word_embeddings": False}
    folder = checkpoint(tmp_path / "c", {**EQUAL, HEAD: 3 * values()}, config)
    assert command.main([str(folder), str(tmp_path / "out"), "--keep", "aligned"]) == 0
    np.testing.assert_allclose(load_file(tmp_path / "out" / "model.safetensors")[NORM], 3 * WEIGHT, rtol=1e-5)


def test_mbart_has_a_norm_behind_its_decoder(tmp_path, capsys):
    x = 0.02 * values(40, 16)
    tensors = {"model.shared.weight": x, HEAD: x + 0.003 * values(40, 16, 1)}
    tensors["model.decoder.layer_norm.weight"] = np.full(16, 30, np.float32)
    config = {"model_type": "mbart", "tie_word_embeddings": False}
    assert said(checkpoint(tmp_path / "c", tensors, config), capsys)["moved"]["kl"] > 0.01
    del tensors["model.decoder.layer_norm.weight"]
    found = said(checkpoint(tmp_path / "c", tensors, config), capsys)
    assert found["moved"]["kl"] < 0.01
    assert found["any_scale"] is True


def test_states_whose_size_is_a_guess_do_not_pass(tmp_path, capsys):
    folder = checkpoint(tmp_path / "c", {EMBED: values(), HEAD: NEAR[HEAD]}, CONFIG)
    with pytest.raises(BadInput, match=r"no layer normalisation is known .* a guess: give states by --hidden, or a text"):
        command.main([str(folder), str(tmp_path / "out")])
    assert "the size of its states is a guess: were they larger, logits would move further" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert command.main([str(folder), str(tmp_path / "forced"), "--force"]) == 0
    capsys.readouterr()
    np.save(tmp_path / "h.npy", values(9, 4))
    assert command.main([str(folder), str(tmp_path / "given"), "--hidden", str(tmp_path / "h.npy")]) == 0
    assert "a guess" not in capsys.readouterr().out
    # An output table that stays as it is moves no logit, whatever the states.
    assert command.main([str(checkpoint(tmp_path / "d", {EMBED: values(), HEAD: values()}, CONFIG)), str(tmp_path / "e")]) == 0


# What is written.


@pytest.mark.parametrize("config", [CONFIG, CONFIG | {"tie_word_embeddings": True}])
def test_a_flag_that_says_tied_already_is_told(tmp_path, capsys, config):
    flagged = config["tie_word_embeddings"]
    assert (said(checkpoint(tmp_path / "c", NEAR, config), capsys)["flagged"] is not None) == flagged
    assert command.main([str(tmp_path / "c")]) == 0
    line = "config.json says tied already (tie_word_embeddings: true): who trusts it has used the input table for both"
    assert (line in capsys.readouterr().out.splitlines()) == flagged


def test_an_output_table_of_64_bits_is_kept_to_the_bit(tmp_path):
    wide = values(dtype=np.float64) + 1e-12 * values(seed=1, dtype=np.float64)
    folder = checkpoint(tmp_path / "c", {EMBED: values(dtype=np.float64), HEAD: wide, NORM: WEIGHT}, CONFIG)
    assert command.main([str(folder), str(tmp_path / "kept"), "--keep", "output"]) == 0
    assert load_file(tmp_path / "kept" / "model.safetensors")[EMBED].tobytes() == wide.tobytes()
    for keep in ("mean", "aligned"):
        refused(folder, tmp_path, f"--keep {keep}: .* stores F64, which is read in float32", "--keep", keep)


# Memory.

LIMITED = "import resource, sys; from tiejax.lab.commands.tie import main; "
LIMITED += "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); sys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["drawn", "given"])
def test_states_times_tokens_need_not_fit_into_memory(tmp_path, where):
    """Both logits of 10,000 states and 24,000 tokens take 1.8 GiB in float32, and 1 GiB may be used."""
    tables = {EMBED: values(24_000, 2, dtype=np.float16), HEAD: values(24_000, 2, 1, np.float16)}
    folder = checkpoint(tmp_path / "c", {**tables, NORM: np.ones(2, np.float32)}, CONFIG)
    np.save(tmp_path / "h.npy", values(10_000, 2))
    flags = ["--states", 10_000] if where == "drawn" else ["--hidden", tmp_path / "h.npy"]
    ended = end(start_python("-c", LIMITED, folder, *flags, "--json", env={"OPENBLAS_NUM_THREADS": "1"}))
    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["states"] == 10_000
    assert found["moved"]["kl"] > 0.1


def test_states_that_the_memory_cannot_hold_are_refused(tmp_path, monkeypatch):
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    np.save(tmp_path / "h.npy", values(256, 4))
    monkeypatch.setattr(of_states, "machine_memory", lambda: 3 * 4 * 256 * 4 - 1)
    refused(folder, tmp_path, "--states: 256 states of width 4 take 12,288 bytes; the memory has 12,287")
    refused(folder, tmp_path, "--hidden: 256 states of width 4 take", "--hidden", tmp_path / "h.npy")


def test_more_states_than_are_compared(tmp_path):
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    np.save(tmp_path / "h.npy", np.zeros((2**16 + 1, 4), np.float16))
    refused(folder, tmp_path, "h.npy: holds 65,537 states; at most 65,536 are compared", "--hidden", tmp_path / "h.npy")


# States of a file.


def npy(header, version=b"\x01\x00"):
    length = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + length + header.encode("latin1") + b"\0" * 64


def shaped(shape, descr="'<f4'"):
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}")


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': ('<f4', 'fortran_order': False, 'shape': (2,4)"),
        npy("{'descr': '''<f4"),
        npy("(" * 9000),
        npy("-" * 9000 + "1"),
        npy("\0\0"),
        npy("(1,)"),
        npy("  {\n'a':1}\n      x"),
        npy("{}", b"\x09\x00"),
        shaped(f"({2**70}, 4)"),
        shaped(f"({2**62}, 4)"),
        shaped("(-2, 4)"),
        shaped("(True, 4)"),
        shaped("(2, 4)", "{'a': 1}"),
        shaped("(2, 4)", "3"),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"x" * 100,
        b"\x93NUM",
        b"",
    ],
    ids=range(17),
)
def test_files_that_are_no_states(tmp_path, content):
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    (tmp_path / "h.npy").write_bytes(content)
    refused(folder, tmp_path, "--hidden .*h.npy: (is no .npy file of numbers|must )", "--hidden", tmp_path / "h.npy")


def test_states_that_float32_cannot_hold(tmp_path):
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    for array, words in (
        (np.full((2, 4), 1e300), "not finite in float32"),
        (np.full((2, 4), 3e38, np.float32), "lm_head.weight"),
    ):
        np.save(tmp_path / "h.npy", array)
        refused(folder, tmp_path, words, "--hidden", tmp_path / "h.npy")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--hidden", ""], "--hidden: must name a file, got nothing"),
        (["--text", ""], "--text: must name a file, got nothing"),
        (["--text", "tfds:wiki40b"], "--text tfds:wiki40b: must be a text file or a folder of them"),
    ],
)
def test_names_that_are_none(tmp_path, flags, words):
    refused(checkpoint(tmp_path / "c", EQUAL, CONFIG), tmp_path, words, *flags)


def test_no_name_for_the_new_folder(tmp_path):
    with pytest.raises(BadInput, match="out: must name a folder, got nothing"):
        command.main([str(checkpoint(tmp_path / "c", EQUAL, CONFIG)), ""])
