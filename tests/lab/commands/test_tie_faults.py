"""The command `tiejax tie` on unusable checkpoints, states and texts: refused in one line, with no warning and no folder."""

import json

import ml_dtypes
import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from processes import end, start_python
from safetensors.numpy import load_file

from tiejax.checkpoints.hub import reading
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.rewrite.one_table import Distances
from tiejax.checkpoints.rewrite.states import last_norm
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
    """Assert a one-line error with these words, nothing written despite --force, and no warning (pytest makes them errors)."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadInput, match=words) as error:
        command.main([str(folder), str(tmp_path / "out"), "--force", *map(str, flags)])
    assert len(str(error.value).splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def report(folder, capsys, *flags):
    """Run the command without OUT, and return its JSON report."""
    assert command.main([str(folder), "--json", *map(str, flags)]) == 0
    return json.loads(capsys.readouterr().out)


# Values that are not finite numbers.


@pytest.mark.parametrize("keep", ["input", "aligned"])
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({**EQUAL, NORM: WEIGHT * np.nan}, f"{NORM} has a value that is not finite"),
        ({**EQUAL, NORM: np.full(4, 1e300)}, f"{NORM} has a value that is not finite in float32"),
        ({**EQUAL, NORM: 1.5e38 * WEIGHT}, f"the output of {NORM} is not finite"),
        ({**EQUAL, "model.norm.bias": WEIGHT + np.inf}, "model.norm.bias has a value that is not finite"),
        ({**EQUAL, "model.norm.bias": values(3, 1)[:, 0]}, r"model.norm.bias is \[3\] F32; expected \[4\]"),
        ({**EQUAL, NORM: np.ones(4, np.int64)}, rf"{NORM} is \[4\] I64; expected \[4\], in one of float64"),
        ({**EQUAL, NORM: np.ones(4, bool)}, rf"{NORM} is \[4\] BOOL"),
        ({**EQUAL, NORM: np.ones(4, ml_dtypes.float8_e4m3fn)}, rf"{NORM} is \[4\] F8_E4M3"),
        ({**EQUAL, BIAS: values(23, 1)[:, 0] + np.nan}, f"{BIAS} has a value that is not finite"),
        ({**EQUAL, BIAS: np.ones(23, ml_dtypes.float8_e4m3fn)}, rf"{BIAS} is \[23\] F8_E4M3"),
        ({**EQUAL, BIAS: np.ones(22, np.float32)}, rf"{BIAS} is \[22\] F32; expected \[23\]"),
        ({**EQUAL, EMBED: values() * np.inf}, "model.embed_tokens.weight has a value that is not finite"),
        (HUGE, "lm_head.weight: the logits are not finite in float32"),
    ],
    ids=range(13),
)
def test_invalid_tensors(tmp_path, tensors, words, keep):
    refused(checkpoint(tmp_path / "c", tensors, CONFIG), tmp_path, words, "--keep", keep)


@pytest.mark.parametrize(
    ("kind", "key"),
    [("cohere", "logit_scale"), ("cohere2", "logit_scale"), ("gemma2", "final_logit_softcapping")],
)
@pytest.mark.parametrize("number", ["NaN", "1e400", "-1e400", "1" + "0" * 400, "0", "-1", "1e-320", '"x"', "[1]", "true"])
def test_invalid_scales_of_logits(tmp_path, kind, key, number):
    folder = checkpoint(tmp_path / "c", EQUAL, {"model_type": kind, "tie_word_embeddings": False})
    (folder / "config.json").write_text((folder / "config.json").read_text()[:-1] + f', "{key}": {number}}}')
    refused(folder, tmp_path, f"config.json: {key}: expected a finite number above 0, got ")


def test_a_head_with_a_second_matrix_is_refused_unless_the_tables_are_equal(tmp_path, capsys):
    """The logits of MobileBERT are h [T, D]^T, with D beside the table T."""
    table, head = "mobilebert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    config = {"model_type": "mobilebert", "tie_word_embeddings": False}
    both = {table: values(), head: values() + 1e-4 * values(seed=1)}
    refused(checkpoint(tmp_path / "c", both, config), tmp_path, "its logits read a second matrix")
    equal = checkpoint(tmp_path / "equal", {table: values(), head: values()}, config)
    assert report(equal, capsys)["moved"]["kl"] == 0


def test_scale_of_another_family_is_ignored(tmp_path):
    """A Llama with keys that would make all logits equal in a Cohere model."""
    tensors = {**EQUAL, HEAD: values(seed=1)}
    small = {"logit_scale": 1e-6, "logits_scaling": 1e6, "final_logit_softcapping": 1e-6}
    with pytest.raises(BadInput, match="logits move by"):
        command.main([str(checkpoint(tmp_path / "c", tensors, CONFIG | small)), str(tmp_path / "out")])


@pytest.mark.parametrize(("kl", "top1"), [(np.nan, 1.0), (0.0, np.nan), (0.02, 1.0), (0.0, 0.9)])
def test_nan_is_an_obstacle(kl, top1):
    found = Report("input", "differ", Distances(0.0, 0.1), "drawn", 1, False, Moved(kl, top1, None, None), 0)
    assert "logits move by" in found.obstacle()


@pytest.mark.parametrize("keep", ["output", "mean", "aligned"])
def test_table_that_overflows_its_dtype(tmp_path, keep):
    tensors = {EMBED: values(dtype=np.float16), HEAD: 1e7 * values(seed=1), NORM: WEIGHT}
    words = f"{EMBED if keep != 'aligned' else NORM}: contains a value too large for float16"
    if keep == "aligned":  # the scale takes up the size, and overflows the norm
        tensors = {EMBED: values(), HEAD: 10 * values(), NORM: (3e4 * WEIGHT).astype(np.float16)}
    refused(checkpoint(tmp_path / "c", tensors, CONFIG), tmp_path, words, "--keep", keep)


def test_mean_of_huge_equal_tables(tmp_path, capsys):
    """The sum of both tables overflows, their mean does not."""
    one = np.where(values() > 0, 3e38, -3e38).astype(np.float32)
    folder = checkpoint(tmp_path / "c", {EMBED: one, HEAD: one, NORM: 1e-38 * WEIGHT}, CONFIG)
    found = report(folder, capsys, "--keep", "mean")
    assert (found["distances"], found["moved"]["kl"]) == ({"input": 0.0, "output": 0.0}, 0.0)


# Biases.


def with_biases(tmp_path, **biases):
    names = {"cls.predictions.bias": np.zeros(23, np.float32), "cls.predictions.decoder.bias": np.zeros(23, np.float32)}
    tensors = {"bert.embeddings.word_embeddings.weight": values(), "cls.predictions.decoder.weight": values(seed=1)}
    return checkpoint(tmp_path / "c", tensors | names | biases, {"model_type": "bert", "tie_word_embeddings": False})


def spiked(shape=(23,)):
    """A bias that makes one token the likeliest for every state."""
    return np.where(np.arange(23) == 3, 100, 0).astype(np.float32).reshape(shape)


def test_untied_bert_adds_the_bias_of_its_decoder(tmp_path, capsys):
    assert report(with_biases(tmp_path), capsys)["moved"]["top1"] < 1
    assert report(with_biases(tmp_path, **{"cls.predictions.decoder.bias": spiked()}), capsys)["moved"]["top1"] == 1
    assert report(with_biases(tmp_path, **{"cls.predictions.bias": spiked()}), capsys)["moved"]["top1"] < 1


def test_bias_of_bart_is_added(tmp_path, capsys):
    tensors = {"model.shared.weight": values(), HEAD: values(seed=1)}
    config = {"model_type": "bart", "tie_word_embeddings": False}
    assert report(checkpoint(tmp_path / "c", tensors, config), capsys)["moved"]["top1"] < 1
    with_bias = checkpoint(tmp_path / "c", {**tensors, "final_logits_bias": spiked((1, 23))}, config)
    assert report(with_bias, capsys)["moved"]["top1"] == 1


def test_vocabulary_as_large_as_the_width(tmp_path, capsys):
    """The bias has one value per token, even if the vocabulary is as large as the width."""
    square = {EMBED: values(4), HEAD: values(4), NORM: WEIGHT, BIAS: values(4, 1)[:, 0]}
    assert report(checkpoint(tmp_path / "c", square, CONFIG | {"vocab_size": 4}), capsys)["moved"]["kl"] == 0
    folder = checkpoint(tmp_path / "d", {**EQUAL, BIAS: values(4, 1)[:, 0]}, CONFIG | {"vocab_size": 4})
    refused(folder, tmp_path, rf"{BIAS} is \[4\] F32; expected \[23\]")


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
def test_norms_that_multiply_by_weight_plus_one(tmp_path, config, offset):
    assert last_norm(open_checkpoint(checkpoint(tmp_path / "c", EQUAL, config)), (EMBED, HEAD), 4).offset == offset


def test_gemma3n_norm_multiplies_by_the_weight(tmp_path):
    config = {"model_type": "gemma3n_text", "tie_word_embeddings": False}
    folder = checkpoint(tmp_path / "c", {**EQUAL, HEAD: 3 * values()}, config)
    assert command.main([str(folder), str(tmp_path / "out"), "--keep", "aligned"]) == 0
    np.testing.assert_allclose(load_file(tmp_path / "out" / "model.safetensors")[NORM], 3 * WEIGHT, rtol=1e-5)


def test_mbart_has_a_norm_after_its_decoder(tmp_path, capsys):
    x = 0.02 * values(40, 16)
    tensors = {"model.shared.weight": x, HEAD: x + 0.003 * values(40, 16, 1)}
    tensors["model.decoder.layer_norm.weight"] = np.full(16, 30, np.float32)
    config = {"model_type": "mbart", "tie_word_embeddings": False}
    assert report(checkpoint(tmp_path / "c", tensors, config), capsys)["moved"]["kl"] > 0.01
    del tensors["model.decoder.layer_norm.weight"]
    found = report(checkpoint(tmp_path / "c", tensors, config), capsys)
    assert found["moved"]["kl"] < 0.01
    assert found["any_scale"] is True


def test_states_of_unknown_scale_are_refused(tmp_path, capsys):
    folder = checkpoint(tmp_path / "c", {EMBED: values(), HEAD: NEAR[HEAD]}, CONFIG)
    with pytest.raises(BadInput, match=r"no layer normalisation is known .* a guess: give a file of hidden states, or a text"):
        command.main([str(folder), str(tmp_path / "out")])
    assert (
        "the scale of the hidden states is a guess: with larger states, the logits would move further"
        in capsys.readouterr().out
    )
    assert not (tmp_path / "out").exists()
    assert command.main([str(folder), str(tmp_path / "forced"), "--force"]) == 0
    capsys.readouterr()
    np.save(tmp_path / "h.npy", values(100, 4))
    assert command.main([str(folder), str(tmp_path / "given"), "--hidden", str(tmp_path / "h.npy")]) == 0
    assert "a guess" not in capsys.readouterr().out
    # An unchanged output table moves no logit, whatever the states.
    assert command.main([str(checkpoint(tmp_path / "d", {EMBED: values(), HEAD: values()}, CONFIG)), str(tmp_path / "e")]) == 0


# The written checkpoint.


@pytest.mark.parametrize("config", [CONFIG, CONFIG | {"tie_word_embeddings": True}])
def test_flag_that_already_says_tied_is_reported(tmp_path, capsys, config):
    flagged = config["tie_word_embeddings"]
    assert (report(checkpoint(tmp_path / "c", NEAR, config), capsys)["flagged"] is not None) == flagged
    assert command.main([str(tmp_path / "c")]) == 0
    line = "config.json already says tied (tie_word_embeddings: true): loaders that trust it used the input table for both"
    assert (line in capsys.readouterr().out.splitlines()) == flagged


def test_output_table_in_float64_is_copied_bitwise(tmp_path):
    wide = values(dtype=np.float64) + 1e-12 * values(seed=1, dtype=np.float64)
    folder = checkpoint(tmp_path / "c", {EMBED: values(dtype=np.float64), HEAD: wide, NORM: WEIGHT}, CONFIG)
    assert command.main([str(folder), str(tmp_path / "kept"), "--keep", "output"]) == 0
    assert load_file(tmp_path / "kept" / "model.safetensors")[EMBED].tobytes() == wide.tobytes()
    for keep in ("mean", "aligned"):
        refused(folder, tmp_path, f"--keep {keep}: .* stores F64, but the {keep} table is computed in float32", "--keep", keep)


# Memory.

LIMITED = "import resource, sys; from tiejax.lab.commands.tie import main; "
LIMITED += "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); sys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["drawn", "given"])
def test_logits_need_not_fit_into_memory(tmp_path, where):
    """Old and new logits of 10,000 states and 24,000 tokens take 1.8 GiB in float32; the limit is 1 GiB."""
    tables = {EMBED: values(24_000, 2, dtype=np.float16), HEAD: values(24_000, 2, 1, np.float16)}
    folder = checkpoint(tmp_path / "c", {**tables, NORM: np.ones(2, np.float32)}, CONFIG)
    np.save(tmp_path / "h.npy", values(10_000, 2))
    flags = ["--states", 10_000] if where == "drawn" else ["--hidden", tmp_path / "h.npy"]
    ended = end(start_python("-c", LIMITED, folder, *flags, "--json", env={"OPENBLAS_NUM_THREADS": "1"}))
    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["states"] == 10_000
    assert found["moved"]["kl"] > 0.1


def test_states_that_exceed_the_memory_are_refused(tmp_path, monkeypatch):
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    np.save(tmp_path / "h.npy", values(256, 4))
    monkeypatch.setattr(reading, "machine_memory", lambda: 3 * 4 * 256 * 4 - 1)
    refused(folder, tmp_path, "--states: 256 states of width 4: takes 12 KiB in memory; this machine has 12 KiB")
    refused(folder, tmp_path, "--hidden: 256 states of width 4: takes", "--hidden", tmp_path / "h.npy")


def test_too_many_states_are_refused(tmp_path):
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    np.save(tmp_path / "h.npy", np.zeros((2**16 + 1, 4), np.float16))
    refused(folder, tmp_path, "h.npy: has 65,537 states; expected at most 65,536", "--hidden", tmp_path / "h.npy")


# States from a file.


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
def test_invalid_state_files(tmp_path, content):
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    (tmp_path / "h.npy").write_bytes(content)
    refused(folder, tmp_path, "--hidden .*h.npy: (not a .npy file of numbers|expected )", "--hidden", tmp_path / "h.npy")


def test_an_archive_instead_of_states_is_refused(tmp_path):
    np.savez(tmp_path / "h.npz", np.ones((300, 4), np.float32))
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    refused(folder, tmp_path, "h.npz: not a .npy file of numbers", "--hidden", tmp_path / "h.npz")


def test_states_that_overflow_float32(tmp_path):
    folder = checkpoint(tmp_path / "c", EQUAL, CONFIG)
    for array, words in (
        (np.full((100, 4), 1e300), "not finite in float32"),
        (np.full((100, 4), 3e38, np.float32), "lm_head.weight"),
    ):
        np.save(tmp_path / "h.npy", array)
        refused(folder, tmp_path, words, "--hidden", tmp_path / "h.npy")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--hidden", ""], "--hidden: expected the path of a file, got ''"),
        (["--text", ""], "--text: expected the path of a file, got ''"),
        (["--text", "tfds:wiki40b"], "--text tfds:wiki40b: expected a text file or a folder of text files"),
    ],
)
def test_invalid_paths(tmp_path, flags, words):
    refused(checkpoint(tmp_path / "c", EQUAL, CONFIG), tmp_path, words, *flags)


def test_empty_out(tmp_path):
    with pytest.raises(BadInput, match="out: expected the path of a folder, got ''"):
        command.main([str(checkpoint(tmp_path / "c", EQUAL, CONFIG)), ""])
