"""The layer-tying experiment as users run it: what a run leaves, resumption after a kill, options, bad input."""

import json
import os
import pydoc_data.topics
import re
import shlex
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors
from processes import EXPERIMENTS, assert_refused, command_here, end, start, tree, wait_until

from tiejax import tying
from tiejax.studies.layer_tying import study as experiment
from tiejax.studies.layer_tying.job import Data, Job, run_job
from tiejax.training import Checkpoints

SCRIPT = EXPERIMENTS / "layer_tying.py"
SMALL = shlex.split("""
  --vocab_size 300 --layers 3 --width 8 --heads 2 --context 12 --batch_size 4 --steps 22 --k 2 --validate_every 8
  --validation_blocks 8 --test_blocks 10 --epsilon_floor .5
  --methods [untied,found-map,agent,random-agent,random-map] --maps '{mine: [0,0,2], copy: [0,1,2]}'
""")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """English text, and where runs prepare it."""
    folder = tmp_path_factory.mktemp("text")
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (folder / "corpus.txt").write_text("\n\n".join(topics[:12]))
    return folder


def settings(data, *more):
    return ["--corpus", str(data / "corpus.txt"), "--data_dir", str(data / "prepared"), *SMALL, *map(str, more)]


def metrics(out):
    with np.load(out / "metrics.npz") as found:
        return dict(found)


@pytest.fixture(scope="module")
def run(data):
    """A run of one seed in this process."""
    out = data / "run"
    patch = pytest.MonkeyPatch()
    patch.setattr(experiment, "stop_flag", lambda: lambda: False)
    with patch.context():
        assert experiment.main(settings(data, "--out", out, "--quiet")) == 0
    patch.undo()
    return out


def test_a_run_leaves_what_it_says(run):
    there = set(os.listdir(run))
    assert {"config.yaml", "data.json", "environment.json", "metrics.npz", "results.json", "report.html"} <= there
    assert {path.stem for path in (run / "figures").glob("*.png")} == {"map", "learning", "methods", "agent", "maps"}
    assert not list((run / "checkpoints").iterdir())
    found, results = metrics(run), json.loads((run / "results.json").read_text())
    assert found["methods"].tolist() == ["agent", "random-agent", "untied", "mine", "copy", "found-map", "random-map"]
    assert found["train_loss"].shape == (7, 1, 22)
    assert found["validation_step"].tolist() == [0, 8, 16, 22]
    assert found["action_layer"].tolist() == [1, 2] * 5 + [1]
    assert found["action_episode"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    for part in results["methods"]:
        assert part["method"] in found["methods"]
    assert "Dynamic layer tying" in (run / "report.html").read_text()


def test_what_the_agents_did_is_what_the_maps_say(run):
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


def test_all_methods_see_the_same_batches(data, run):
    """And all of a held-out split is judged, once."""
    found = metrics(run)
    losses = dict(zip(found["methods"].tolist(), found["train_loss"][:, 0], strict=True))
    # The untied map by another name; and one that is another.
    np.testing.assert_array_equal(losses["copy"], losses["untied"])
    assert not np.array_equal(losses["mine"], losses["untied"])
    text = experiment.prepare(experiment.Config(**_fields(run)), _Silent())
    batches = experiment.build_data(experiment.Config(**_fields(run)), text)
    one, again, other = batches.group(0, 3), batches.group(0, 3), batches.group(1, 3)
    assert len(one) == 3  # k and one for the reward
    for batch, same in zip(one, again, strict=True):
        np.testing.assert_array_equal(batch.tokens, same.tokens)
    assert any(not np.array_equal(batch.tokens, different.tokens) for batch, different in zip(one, other, strict=True))
    whole = experiment.build_data(experiment.Config(**_fields(run) | {"test_blocks": None}), text).held_out["test"]
    rows = np.concatenate([batch.tokens[batch.weight > 0] for batch, _ in whole])
    np.testing.assert_array_equal(rows, text.blocks["test"])
    assert sum(weight for _, weight in whole) == len(rows)


def _fields(run):
    import yaml

    return yaml.safe_load((run / "config.yaml").read_text())


class _Silent:
    def preparing(self):
        from tiejax.runs.console import Console

        return Console(quiet=True).preparing()

    def say(self, line):
        pass


def test_saved_weights_hold_distinct_layers_once_and_give_the_test_loss(run, data):
    found = metrics(run)
    place = found["methods"].tolist().index("mine")
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
    config = experiment.Config(**_fields(run))
    text = experiment.prepare(config, _Silent())
    model = experiment.build_model(config, text.streams.vocabulary)
    chosen = text.blocks["test"][np.arange(10) * len(text.blocks["test"]) // 10].astype(np.int32)
    logits = np.asarray(jax.jit(model.apply)({"params": params}, chosen, owner=np.array(facts["places"], np.int32)), np.float64)
    logits = logits[:, :-1] - np.log(np.exp(logits[:, :-1]).sum(-1, keepdims=True))
    expected = -np.take_along_axis(logits, chosen[:, 1:, None], -1).mean()
    assert found["test_loss"][place, 0] == pytest.approx(expected, rel=1e-5)


def test_a_killed_run_goes_on_to_the_same_bits_on_fewer_devices_and_without_what_was_prepared(run, data, tmp_path):
    out = tmp_path / "killed"
    argv = settings(data, "--out", out, "--checkpoint_every", ".01")
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


def test_a_run_goes_on_from_the_models_that_are_finished(run, data, tmp_path):
    """Six of seven are, of 22 steps each: one is trained, and the others count as done from the first line on."""
    out = tmp_path / "partly"
    shutil.copytree(run, out)
    (out / "results.json").unlink()
    file = out / "finished" / "mine-seed0.npz"
    file.write_bytes(file.read_bytes()[:100])
    argv = settings(data, "--out", out, "--resume")
    damaged = end(start(*argv, script=SCRIPT))
    assert damaged.status == 2
    told = f"layer_tying.py: error: --resume: {file} is damaged; remove it, and that model is trained again"
    assert damaged.err.splitlines() == [told]
    file.unlink()
    others = {path: path.stat().st_mtime_ns for path in (out / "finished").iterdir()}
    ended = end(start(*argv, script=SCRIPT))
    assert ended.status == 0, ended.err
    assert re.findall(r"step ([\d,]+) of 154", ended.out)[0] == "132"
    assert {path: path.stat().st_mtime_ns for path in others} == others
    first, again = metrics(run), metrics(out)
    for name in set(first) - {"time_step"}:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)


def test_a_stopped_model_goes_on_to_the_same_bits_with_every_odd_option(data, tmp_path):
    """BERT's block, masked, half precision, ties as the published code has them, frozen layers, full storage."""
    config = experiment.Config(
        layers=3, width=8, heads=2, context=6, batch_size=2, steps=12, k=2, validate_every=5, dropout=0.2, architecture="bert",
        objective="masked", dtype="bfloat16", ties="published", gradient="owner", start="frozen-random", storage="full",
        reward="clipped-ppl", moments="zero",
    ).resolved()  # fmt: skip
    layered = experiment.build(config, 11, 0, jax.devices()[0])

    def batch(number):
        tokens = np.random.default_rng(number).integers(1, 11, (2, 6)).astype(np.uint16)
        return experiment.Batch(tokens, np.ones(2, np.float32), jax.random.key(number))

    held_out = [(batch(1000), 2.0)]
    batches = Data(lambda seed, group: [batch(10 * group + place) for place in range(3)], held_out, {"test": held_out})
    protocol, job = experiment.protocol_of(config), Job("agent", 7, "learner", None)
    straight = run_job(layered, protocol, job, batches)
    asked = iter([False, False, True])
    checkpoints = Checkpoints(tmp_path / "job", [tying.Tie(*experiment.TABLES)], say=pytest.fail)
    assert run_job(layered, protocol, job, batches, checkpoints, stop_requested=lambda: next(asked)) is None
    resumed = run_job(layered, protocol, job, batches, checkpoints, resume=True)
    checkpoints.close()
    assert straight is not None
    assert resumed is not None
    for group, fields in straight[0].items():
        for name in set(fields) - {"time"}:
            np.testing.assert_array_equal(fields[name], resumed[0][group][name], err_msg=f"{group} {name}")
    for one, other in zip(jax.tree.leaves(straight[1]), jax.tree.leaves(resumed[1]), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype == np.dtype("bfloat16")
    assert np.isfinite(straight[0]["step"]["loss"]).all()


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a few words, not enough of them " * 3)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--k 0", ["--k: must be at least 1, got 0"]),
        ("--episodes 0", ["--episodes: must be at least 1, got 0"]),
        ("--layers 0", ["--layers: must be at least 1, got 0"]),
        ("--layers 1", ["--layers: an agent needs at least 2"]),
        ("--steps 10 --episodes 2", ["--steps and --episodes: give one of them"]),
        ("--clip 0", ["--clip: must be above 0, got 0.0"]),
        ("--clip -1", ["--clip: must be above 0, got -1.0"]),
        ("--layers 3 --maps '{mine: [0,2,2]}'", ["--maps: mine: owner: layer 1 cannot copy layer 2"]),
        ("--layers 3 --maps '{mine: [0,0]}'", ["--maps: mine: must have one owner for each of the 3 layers, has 2 entries"]),
        ("--layers 3 --maps '{a/b: [0,0,0]}'", ["--maps: a name is letters, digits, - and _"]),
        ("--layers 3 --maps '{untied: [0,0,0]}'", ["every name once, untied is repeated"]),
        ("--methods [agnet]", ["--methods: there is no agnet; there are agent, random-agent"]),
        ("--methods []", ["--methods: needs at least one of agent"]),
        ("--methods [found-map]", ["--methods: found-map is the agent's map, so it needs agent as well"]),
        ("--layers 4 --distinct 5", ["--distinct: 5 is more than --layers 4"]),
        ("--ties published", ["--gradient: ties published send gradient of the owner's own use alone; give owner"]),
        ("--epsilon_floor 1.5", ["--epsilon_floor: must lie between 0 and 1, got 1.5"]),
        ("--context 1", ["--context: must lie between 2"]),
        ("--width 10 --heads 4", ["--heads: 4 heads do not divide the width 10"]),
        ("--distributed", ["unknown option --distributed"]),
        (
            "--corpus text.txt --data_dir cache --vocab_size 300 --context 512",
            ["--context 512", "--corpus", "a block takes 511"],
        ),
        ("--corpus text.txt --validation text.txt --data_dir cache", ["--test: needed, since --validation is given"]),
    ],
)
def test_bad_input(argv, words, here, monkeypatch, capsys):
    before = {name for name in tree(here) if not name.startswith("cache")}
    ended = command_here(shlex.split(argv), monkeypatch, capsys, experiment)
    observation = ended._replace(out="") if "--corpus" in argv else ended  # preparing text says where it is put
    assert_refused(observation, *words, script=SCRIPT)
    assert {name for name in tree(here) if not name.startswith("cache")} == before


def test_every_configuration_is_one():
    from tiejax.settings import command_line

    for path in sorted((Path(SCRIPT).parents[1] / "configs" / "layer_tying").glob("*.yaml")):
        config, _ = command_line.parse(experiment.Config, experiment.STUDY.command, ["--config", str(path)])
        assert config.resolved().out == f"runs/layer_tying/{path.stem}"


def test_lists_of_methods_agree():
    """The analysis, the figures and the maps know methods by name, and may not import the experiment's list."""
    from tiejax.studies.layer_tying.claims import NOT_STATIC
    from tiejax.studies.layer_tying.figures import METHOD_COLOURS

    fixed = {name for name in experiment.METHODS if name not in experiment.AGENTS and name not in experiment.AFTER_AGENT}
    assert fixed == set(tying.MAPS)
    assert set(NOT_STATIC) == set(METHOD_COLOURS) == set(experiment.METHODS) - fixed | {"untied"}
