"""End-to-end tests of the layer-tying study: its files, and resumption after a kill.

Runs that are neither stopped nor killed train in this process.
"""

import dataclasses
import itertools
import json
import os
import re
import shlex
import shutil
import signal

import filelock
import jax
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import yaml
from processes import EXPERIMENTS, end, run_here, start, wait_until
from stream_runs import corpus_folder, metrics, text_of

from tiejax import training
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying import generation, text
from tiejax.lab.studies.layer_tying.model import build_model, read_weights
from tiejax.lab.studies.layer_tying.settings import STUDY, Settings
from tiejax.models import counts

pytestmark = pytest.mark.slow
SCRIPT = EXPERIMENTS / "layer_tying.py"
SMALL = shlex.split("""
  --vocab_size 300 --layers 3 --width 8 --heads 2 --context 12 --batch_size 4 --steps 22 --k 2 --validate_every 8
  --validation_blocks 8 --test_blocks 10 --epsilon_floor .5 --learning_rate .02
  --methods [untied,found-map,agent,random-agent,random-map] --maps '{mine: [0,0,2], copy: [0,1,2]}'
  --variants '{low-rank: {map: [0,0,2], lora_rank: 2, better_than: mine}}'
""")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus_folder(tmp_path_factory)


def arguments(data, *more):
    return [*text_of(data), *SMALL, *map(str, more)]


def trained(*argv):
    """Train a run to its end; return how it ended."""
    ended = run_here(STUDY, *argv)
    assert (ended.status, ended.err) == (0, "")
    return ended


def settings_of(run):
    return Settings(**yaml.safe_load((run / "config.yaml").read_text()))


@pytest.fixture(scope="module")
def run(data):
    """A run of one seed."""
    out = data / "run"
    trained(*arguments(data, "--out", out, "--quiet"))
    return out


def test_run_writes_its_files(run):
    files = set(os.listdir(run))
    assert {"config.yaml", "data.json", "environment.json", "metrics.npz", "results.json", "report.html"} <= files
    assert {path.stem for path in (run / "figures").glob("*.png")} == {"bytes", "map", "learning", "agent"}
    assert not list((run / "checkpoints").iterdir())
    found, results = metrics(run), json.loads((run / "results.json").read_text())
    assert found["methods"].tolist() == ["agent", "random-agent", "untied", "mine", "copy", "low-rank", "found-map",
                                         "random-map"]  # fmt: skip
    assert found["train_loss"].shape == (8, 1, 22)
    assert found["validation_step"].tolist() == [0, 8, 16, 22]
    assert found["action_layer"].tolist() == [1, 2] * 5 + [1]
    assert found["action_episode"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    for part in results["methods"]:
        assert part["method"] in found["methods"]
    assert (results["gate"]["margin"], results["gate"]["failed"]) == (None, "")
    assert results["gate"]["bigram"] == results["bigram"]["losses"]["test"]
    assert found["value"].shape == (2, 1, 11)
    assert np.isfinite(found["value"][0]).all()
    assert np.isnan(found["value"][1]).all()
    assert "Dynamic layer tying" in (run / "report.html").read_text()


def test_recorded_actions_give_the_recorded_maps(run):
    found = metrics(run)
    for agent in range(2):
        owner = np.zeros(3, int)
        for number, (layer, action) in enumerate(zip(found["action_layer"], found["action"][agent, 0], strict=True)):
            owner = owner.copy()
            if action == layer:
                owner[layer] = layer
            else:
                owner[(owner == layer) | (np.arange(3) == layer)] = owner[action]
            np.testing.assert_array_equal(found["action_owner"][agent, 0, number], owner)
            steps = found["distinct"][agent, 0, 2 * number : 2 * number + 2]
            assert (steps == len(np.unique(owner))).all()
    np.testing.assert_array_equal(found["final_owner"][:2], found["action_owner"][:, :, -1])
    by_name = dict(zip(found["methods"].tolist(), found["final_owner"][:, 0], strict=True))
    best = found["best_owner"][0, 0]
    np.testing.assert_array_equal(by_name["found-map"], best)
    assert len(np.unique(by_name["random-map"])) == len(np.unique(best))
    assert by_name["mine"].tolist() == [0, 0, 2]
    assert by_name["untied"].tolist() == [0, 1, 2]


def test_all_methods_see_the_same_batches(run):
    """All methods of a seed get the same batches, and each block of a held-out split is evaluated once."""
    found = metrics(run)
    losses = dict(zip(found["methods"].tolist(), found["train_loss"][:, 0], strict=True))
    # `copy` is the untied map under another name; `mine` is a different map.
    np.testing.assert_array_equal(losses["copy"], losses["untied"])
    assert not np.array_equal(losses["mine"], losses["untied"])
    settings = settings_of(run)
    prepared = text.prepare(settings, Console(quiet=True))
    batches = text.build_data(settings, prepared)
    group, again, other = batches.group(0, 3), batches.group(0, 3), batches.group(1, 3)
    assert len(group) == 3  # k and one for the reward
    for batch, same in zip(group, again, strict=True):
        np.testing.assert_array_equal(batch.tokens, same.tokens)
    assert any(not np.array_equal(batch.tokens, different.tokens) for batch, different in zip(group, other, strict=True))
    whole = text.build_data(dataclasses.replace(settings, test_blocks=None), prepared).held_out["test"]
    rows = np.concatenate([batch.tokens[batch.weight > 0] for batch, _ in whole])
    np.testing.assert_array_equal(rows, prepared.blocks["test"])
    assert sum(weight for _, weight in whole) == len(rows)


def test_low_rank_adaptation_starts_at_the_map_without_it(run):
    """The losses of the first batch agree bit for bit; then the adaptations train."""
    found = metrics(run)
    losses = dict(zip(found["methods"].tolist(), found["train_loss"][:, 0], strict=True))
    assert losses["low-rank"][0] == losses["mine"][0]
    assert not np.array_equal(losses["low-rank"][1:], losses["mine"][1:])
    results = json.loads((run / "results.json").read_text())
    parameters = {row["method"]: row["parameters"][0] for row in results["methods"]}
    assert parameters["low-rank"] - parameters["mine"] == counts.lora(3, 8, 32, 2)
    assert "better/low-rank" in [row["id"] for row in results["claims"]]


def test_every_model_continues_the_same_prompts(run, data):
    """Prompts and true continuations are passages of the text; the same model under two names writes the same."""
    generated, corpus = json.loads((run / "results.json").read_text())["generated"], (data / "corpus.txt").read_text()
    assert (generated["seed"], len(generated["prompts"])) == (0, 3)
    for prompt, continuation in zip(generated["prompts"], generated["text"]["continuations"], strict=True):
        assert prompt
        assert prompt + continuation in corpus
    assert list(generated["methods"]) == settings_of(run).names
    assert generated["methods"]["copy"] == generated["methods"]["untied"]
    assert len({str(found["continuations"]) for found in generated["methods"].values()}) > 1
    for found in (generated["text"], *generated["methods"].values()):
        assert len(found["continuations"]) == 3
        assert found["distinct"] * 24 == pytest.approx(round(found["distinct"] * 24))  # three times eight tokens
    assert "Continuations of prompt 3 by models of seed 0" in (run / "report.html").read_text()


def test_models_with_shared_layers_continue_with_the_weights_in_their_files(run):
    settings = settings_of(run)
    prepared, tokenizer = (
        text.prepare(settings, Console(quiet=True)),
        tokenizers.Tokenizer.from_file(str(run / "tokenizer.json")),
    )
    blocks, found = prepared.blocks["validation"], json.loads((run / "results.json").read_text())["generated"]
    rows, key = blocks[[0, len(blocks) // 2, -1]].astype(np.int32), training.stream(jax.random.key(0), "generation")
    assert found["prompts"] == [tokenizer.decode(row) for row in rows[:, 1:4]]
    for method in ("mine", "low-rank"):
        model = build_model(settings, prepared.streams.vocabulary, settings.form(method))
        weights = read_weights(run / "models" / f"{method}-seed0.safetensors")
        tokens = np.asarray(generation.sampler(model, 3)(*weights, rows, key))[:, 4:]
        texts = [tokenizer.decode(row, skip_special_tokens=False) for row in tokens]
        assert found["methods"][method] == {"continuations": texts, "distinct": len(set(tokens.ravel().tolist())) / 24}


def test_models_that_cannot_be_read_do_not_cost_the_results(run, tmp_path):
    """A damaged file and an intact one that lacks an array are named; the continuations of the others stay the same."""
    shutil.copytree(run, tmp_path / "copy")
    copy = RunDirectory(tmp_path / "copy", filelock.FileLock(tmp_path / "lock"), RunDirectory.opened(tmp_path / "copy"))
    damaged, lacking = (f"models/{method}-seed0.safetensors" for method in ("agent", "untied"))
    (copy.path / damaged).write_bytes((copy.path / damaged).read_bytes()[:-1])
    with safetensors.safe_open(run / lacking, "numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys() if "positions" not in name}  # noqa: SIM118
        copy.write(lacking, safetensors.numpy.save(arrays, file.metadata()))
    settings, warnings = settings_of(run), []
    prepared = text.prepare(settings, Console(quiet=True))
    decode = tokenizers.Tokenizer.from_file(str(run / "tokenizer.json")).decode
    blocks, vocabulary = prepared.blocks["validation"], prepared.streams.vocabulary
    found = generation.generated(settings, copy, blocks, vocabulary, decode, warnings.append)["methods"]
    before = json.loads((run / "results.json").read_text())["generated"]["methods"]
    assert found.pop("agent") == {"problem": f"{copy.path / damaged} is damaged or missing"}
    assert list(found.pop("untied")) == ["problem"]
    assert found == {name: before[name] for name in found}
    assert [line.split(":")[0] for line in warnings] == ["agent, seed 0", "untied, seed 0"]


def test_masked_models_continue_nothing(data):
    argv = ["--objective", "masked", "--methods", "[untied]", "--maps", "{}", "--variants", "{}", "--steps", 2]
    trained(*arguments(data, *argv, "--out", data / "masked", "--quiet"))
    assert "generated" not in json.loads((data / "masked" / "results.json").read_text())
    report = (data / "masked" / "report.html").read_text()
    assert "Continuations" not in report
    assert "per word" not in report


FACTORS = "--table_factors", "[1,4]", "--rate_seeds", 2


def two_classes(data, *factors):
    """Return the arguments of a run that chooses rates for two classes of models."""
    methods = *arguments(data), "--methods", "[untied,all-one]", "--maps", "{}", "--variants", "{}"
    return *methods, "--rates", "[1e-9,1e-2,10e-2]", "--rate_seeds", 1, "--gate", -9, *factors


@pytest.fixture(scope="module")
def with_rates(data):
    """A run that chooses among three rates for each of two classes."""
    out = data / "rates"
    trained(*two_classes(data), "--out", out)
    return out


@pytest.fixture(scope="module")
def with_factors(data):
    """The same with two factors of the tables' rate and two seeds: more pairs than are trained with both."""
    out = data / "factors"
    trained(*two_classes(data, *FACTORS), "--out", out)
    return out


def test_chosen_rates_train_the_reported_seeds_which_may_grow(data, with_rates, tmp_path):
    """A run that chooses among three rates equals one with the chosen rate, bit for bit; a second seed is appended."""
    chosen, fixed = shutil.copytree(with_rates, tmp_path / "chosen"), tmp_path / "fixed"
    results = json.loads((chosen / "results.json").read_text())
    assert {name: row["method"] for name, row in results["tuning"].items()} == {"untied": "untied", "looped": "all-one"}
    assert results["tuning_seeds"] == [1000]
    for name, rows in results["tuning"].items():
        assert rows["best"] == results["rates"][name] == rows["rates"][int(np.argmin(np.mean(rows["losses"], axis=1)))]
    assert not list((chosen / "models").glob("*seed1000*"))
    trained(*two_classes(data), "--out", chosen, "--seeds", 2, "--resume")
    untuned = *arguments(data), "--maps", "{}", "--variants", "{}"
    for number, method in enumerate(("untied", "all-one")):
        rate = results["rates"][{"untied": "untied", "all-one": "looped"}[method]]
        trained(*untuned, "--methods", f"[{method}]", "--learning_rate", rate, "--seeds", 2, "--overwrite", "--out", fixed)
        np.testing.assert_array_equal(metrics(chosen)["train_loss"][number], metrics(fixed)["train_loss"][0])


def test_the_gate_ends_a_run_before_its_first_seed(data, tmp_path):
    """A lower gate continues the same run; final losses that do not pass leave every claim exploratory."""
    methods = "--methods", "[untied]", "--maps", "{}", "--variants", "{}", "--steps", 2, "--rate_seeds", 1
    argv = *arguments(data, *methods), "--rates", "[1e-3,2e-3]", "--out", tmp_path / "gate"
    with pytest.raises(BadInput, match=r"^--gate: the untied models end with .* where a bigram model has .*$"):
        run_here(STUDY, *argv)
    assert all("rate" in path.name for path in (tmp_path / "gate" / "finished").iterdir())
    trained(*argv, "--gate", -9, "--resume")
    untuned = *arguments(data, *methods), "--methods", "[untied,cycle]", "--gate", 0.1, "--out", tmp_path / "end"
    trained(*untuned)
    results = json.loads((tmp_path / "end" / "results.json").read_text())
    assert results["gate"]["failed"].startswith("No claim is tested, since the untied models end with")
    assert {row["family"] for row in results["claims"]} == {"exploratory"}
    assert results["gate"]["failed"] in (tmp_path / "end" / "report.html").read_text()
    before = metrics(tmp_path / "end")
    trained("--gate", -9, "--resume", "--out", tmp_path / "end")
    results = json.loads((tmp_path / "end" / "results.json").read_text())
    assert results["gate"]["failed"] == ""
    assert "gate: -9" in (tmp_path / "end" / "config.yaml").read_text()
    for name, values in metrics(tmp_path / "end").items():
        np.testing.assert_array_equal(values, before[name])


def test_a_run_whose_agent_diverges_goes_on(data, tmp_path):
    """At this rate rewards and values of actions are soon NaN; from then on the agent leaves all layers as they are."""
    methods = "--methods", "[agent,untied]", "--maps", "{}", "--variants", "{}", "--start", "independent"
    argv = *methods, "--learning_rate", 1e8, "--reward", "negative-ppl", "--out", tmp_path / "run"
    assert run_here(STUDY, *arguments(data, *argv)).status == 0
    results, found = json.loads((tmp_path / "run" / "results.json").read_text()), metrics(tmp_path / "run")
    assert [(member["arm"], member["seed"]) for member in results["non_finite"]] == [("agent", 0), ("untied", 0)]
    assert results["excluded_seeds"] == [0]
    assert np.isnan(found["q_loss"][0, 0, 1:]).all()
    owners = found["action_owner"][0, 0]
    assert (owners[2:] == owners[1]).all()
    assert (tmp_path / "run" / "report.html").exists()


def test_chosen_pairs_train_the_reported_seed(data, tmp_path):
    """All pairs of a rate and a factor are trained with one seed, and the best four with the other one.

    The first seed's models equal runs with their pair, and the reported models those with the chosen pair, bit for bit.
    """
    methods = *arguments(data), "--methods", "[untied,agent]", "--maps", "{}", "--variants", "{}"
    rates, factors, classes, out = (1e-3, 1e-2, 2e-2), (1.0, 4.0), ("untied", "agent"), tmp_path / "chosen"
    grid = "--rates", list(rates), "--table_factors", list(factors), "--rate_seeds", 2, "--gate", -9
    ended = trained(*methods, *grid, "--out", out)
    results, files = json.loads((out / "results.json").read_text()), list((out / "finished").iterdir())
    assert list(results["tuning"]) == list(classes)
    steps = 22 * len(files)
    assert re.findall(r"step ([\d,]+) of ([\d,]+)", ended.out)[-1] == (f"{steps:,}", f"{steps:,}")
    assert not list((out / "models").glob("*seed100*"))
    html = (out / "report.html").read_text()
    for name, tried in results["tuning"].items():
        pairs = list(zip(tried["rates"], tried["factors"], strict=True))
        first = {pair: losses[0] for pair, losses in zip(pairs, tried["losses"], strict=True)}
        full = {pair: losses for pair, losses in zip(pairs, tried["losses"], strict=True) if len(losses) == 2}
        assert set(itertools.product(rates, factors)) <= set(first)
        assert set(sorted(first, key=first.get)[:4]) <= set(full)
        assert len(full) < len(first)
        assert (results["rates"][name], results["table_factors"][name]) == min(full, key=lambda pair: sum(full[pair]))
        assert f"{name} {results['rates'][name]:g}" in html
    assert "factor of the tables" in html
    for number, (name, seed) in enumerate(itertools.product(("agent", "untied"), (0, 1000))):
        rate, factor = (results["rates"][name], results["table_factors"][name]) if seed == 0 else (1e-2, 4.0)
        pair = "--learning_rate", rate, "--table_rate", factor, "--seeds", [seed]
        fixed = tmp_path / f"fixed{number}"
        trained(*methods, "--methods", f"[{name}]", *pair, "--out", fixed)
        tried, found = results["tuning"][name], metrics(fixed)
        if seed == 0:
            place = metrics(out)["methods"].tolist().index(name)
            np.testing.assert_array_equal(metrics(out)["train_loss"][place], found["train_loss"][0])
        else:
            place = list(zip(tried["rates"], tried["factors"], strict=True)).index((rate, factor))
            assert tried["losses"][place][0] == found["validation_loss"].min()


@pytest.mark.parametrize(
    ("straight", "factors", "stops"),
    [
        ("with_rates", (), ("*.npz",)),
        # While pairs are trained with the first seed, and while the best of them are with the other.
        ("with_factors", FACTORS, ("*-seed1000-*.npz", "*-seed1001-*.npz")),
    ],
    ids=["rates", "pairs"],
)
def test_run_stopped_while_rates_are_tried_resumes_to_the_same_result(straight, factors, stops, data, tmp_path, request):
    """The rates that an interrupted run has tried are not tried again; the chosen rates and the models are the same."""
    straight, stopped = request.getfixturevalue(straight), tmp_path / "stopped"
    argv, before = (*two_classes(data, *factors), "--out", stopped), dict[os.PathLike, int]()
    for finished in stops:
        process = start(*argv, *["--resume"] * bool(before), script=SCRIPT)
        assert wait_until(lambda finished=finished: len(list((stopped / "finished").glob(finished))) >= 2, process)
        process.send_signal(signal.SIGINT)
        assert end(process).status == 130
        assert {path: path.stat().st_mtime_ns for path in before} == before
        before = {path: path.stat().st_mtime_ns for path in (stopped / "finished").iterdir()}
        assert all("rate" in path.name for path in before)
        assert not list((stopped / "models").glob("*"))  # of tried rates nothing but the losses is kept
    trained(*argv, "--resume")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    first, again = (json.loads((out / "results.json").read_text()) for out in (straight, stopped))
    for part in ("rates", "table_factors", "tuning"):
        assert first[part] == again[part]
    first, again = metrics(straight), metrics(stopped)
    for name in set(first) - {"time_step"}:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)


def test_run_until_decided_takes_a_second_look(data, tmp_path):
    """Models of one step decide nothing at ten seeds; the seeds of the second look are trained as in a run of all seeds."""
    low_rank = "{low-rank: {map: cycle, lora_rank: 1, better_than: cycle}}"
    small = "--methods", "[untied,cycle]", "--maps", "{}", "--variants", low_rank
    argv = *arguments(data), *small, "--steps", 1, "--learning_rate", 1e-12
    looking, whole = tmp_path / "looking", tmp_path / "whole"
    trained(*argv, "--until", "decided", "--max_seeds", 11, "--out", looking)
    trained(*argv, "--seeds", 11, "--out", whole)
    results = json.loads((looking / "results.json").read_text())
    assert results["looks"] == {"planned": [10, 11], "done": [10, 11]}
    claim = next(claim for claim in results["claims"] if claim["id"] == "better/low-rank")
    assert (claim["verdict"], claim["n"]) == ("undecided", 11)
    first, again = metrics(looking), metrics(whole)
    for name in set(first) - {"time_step"}:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)


def test_saved_weights_hold_distinct_layers_once_and_give_the_test_loss(run):
    found = metrics(run)
    method = found["methods"].tolist().index("mine")
    with safetensors.safe_open(run / "models" / "mine-seed0.safetensors", "numpy") as file:
        facts = {name: json.loads(value) for name, value in file.metadata().items()}
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert facts == {"owner": [0, 0, 2], "places": [0, 0, 1], "tied": ["embed/embedding", "head/embedding"]}
    assert saved["encoder/layers/qkv/kernel"].shape == (2, 8, 24)
    assert "head/embedding" not in saved

    params: dict = {}
    for name, leaf in saved.items():
        *folders, last = name.split("/")
        at = params
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = leaf
    params["head"] = {"embedding": params["embed"]["embedding"]}
    settings = settings_of(run)
    prepared = text.prepare(settings, Console(quiet=True))
    model = build_model(settings, prepared.streams.vocabulary)
    blocks = prepared.blocks["test"]
    chosen = blocks[np.arange(10) * len(blocks) // 10].astype(np.int32)
    logits = np.asarray(jax.jit(model.apply)({"params": params}, chosen, owner=np.array(facts["places"], np.int32)), np.float64)
    logits = logits[:, :-1] - np.log(np.exp(logits[:, :-1]).sum(-1, keepdims=True))
    expected = -np.take_along_axis(logits, chosen[:, 1:, None], -1).mean()
    assert found["test_loss"][method, 0] == pytest.approx(expected, rel=1e-5)


def test_killed_run_resumes_bitwise_on_fewer_devices_without_the_prepared_text(run, data, tmp_path):
    out = tmp_path / "killed"
    argv = arguments(data, "--out", out, "--checkpoint_every", ".01")
    process = start(*argv, script=SCRIPT, env={"JAX_NUM_CPU_DEVICES": "2"})

    def far_enough():
        return any(
            int(step.name) >= 4 for step in (out / "checkpoints").glob("agent-seed0/steps/[0-9]*") if step.name.isdigit()
        )

    assert wait_until(far_enough, process), process.communicate()
    process.kill()
    process.communicate()
    assert not (out / "results.json").exists()
    elsewhere = "--data_dir", tmp_path / "elsewhere"
    ended = end(start(*argv, *elsewhere, "--resume", script=SCRIPT, env={"JAX_NUM_CPU_DEVICES": "1"}))
    assert ended.status == 0, ended.err
    first, again = metrics(run), metrics(out)
    assert set(first) == set(again)
    for name in set(first) - {"time_step"}:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)


def test_resumed_run_keeps_its_finished_models(run, data, tmp_path):
    """Seven of eight models of 22 steps are finished: one is trained, and the steps of the others count as done."""
    out = tmp_path / "partly"
    shutil.copytree(run, out)
    (out / "results.json").unlink()
    file = out / "finished" / "mine-seed0.npz"
    file.write_bytes(file.read_bytes()[:100])
    argv = arguments(data, "--out", out, "--resume")
    message = f"--resume: {file} is damaged; remove it, and that model is trained again"
    with pytest.raises(BadInput, match=f"^{re.escape(message)}$"):
        run_here(STUDY, *argv)
    file.unlink()
    other = out / "finished" / "agent-seed0.npz"
    weights = out / "models" / "agent-seed0.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = f"--resume: {weights} is damaged or missing; remove {other} to train that model again"
    with pytest.raises(BadInput, match=f"^{re.escape(message)}$"):
        run_here(STUDY, *argv)
    weights.write_bytes(content)
    others = {path: path.stat().st_mtime_ns for path in (out / "finished").iterdir()}
    ended = trained(*argv)
    # "compiling" is shown until the first step of this process.
    assert 154 < int(re.findall(r"step ([\d,]+) of 176", ended.out)[0]) <= 176
    assert {path: path.stat().st_mtime_ns for path in others} == others
    first, again = metrics(run), metrics(out)
    for name in set(first) - {"time_step"}:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
