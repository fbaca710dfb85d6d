"""Tests of the layer-tying settings: errors in one line that names the option, and the configurations in configs/."""

import shlex

import pytest
from processes import EXPERIMENTS, assert_refused, command_here, tree

from tiejax.lab.settings import command_line
from tiejax.lab.studies.layer_tying.settings import METHODS, NOT_STATIC, STUDY, Settings
from tiejax.tying.layer_maps import MAPS

SCRIPT = EXPERIMENTS / "layer_tying.py"
CONFIGS = EXPERIMENTS.parent / "configs" / "layer_tying"


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a few words, not enough of them " * 3)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--k 0", ["--k: expected an integer >= 1, got 0"]),
        ("--episodes 0", ["--episodes: expected an integer >= 1, got 0"]),
        ("--layers 0", ["--layers: expected an integer >= 1, got 0"]),
        ("--layers 1", ["--layers: an agent needs at least 2 (layer 0 is always independent), got 1"]),
        ("--steps 10 --episodes 2", ["--steps and --episodes: give one of them"]),
        ("--clip 0", ["--clip: expected a finite number > 0, got 0.0"]),
        ("--clip -1", ["--clip: expected a finite number > 0, got -1.0"]),
        ("--layers 3 --maps '{mine: [0,2,2]}'", ["--maps: mine: owner: layer 1 cannot copy layer 2"]),
        (
            "--layers 3 --maps '{mine: [0,0]}'",
            ["--maps: mine: expected a list of 3 owners, one per layer, got 2 entries"],
        ),
        ("--layers 3 --maps '{a/b: [0,0,0]}'", ["--maps: names may contain only letters, digits, - and _"]),
        ("--layers 3 --maps '{untied: [0,0,0]}'", ["expected distinct names, untied is repeated"]),
        ("--methods [agnet]", ["--methods: unknown method 'agnet'; expected any of agent, random-agent"]),
        ("--methods []", ["--methods: expected at least one of agent"]),
        ("--methods [found-map]", ["--methods: found-map uses the agent's map; add agent"]),
        ("--layers 4 --distinct 5", ["--distinct: expected at most --layers 4, got 5"]),
        ("--variants '{a: {lora_rank: 2}}'", ["--variants: a: expected fields with a map, such as"]),
        ("--variants '{a: 3}'", ["--variants: expected {text: {text: a value}}, got 3"]),
        ("--variants '{a: {map: cycle, rank: 2}}'", ["--variants: a: unknown field 'rank'; the fields are map, distinct,"]),
        ("--variants '{a: {map: cyle}}'", ["--variants: a: map: expected one of untied, all-one", "got cyle"]),
        ("--layers 3 --variants '{a: {map: [0, 0]}}'", ["--variants: a: map: expected a list of 3 owners"]),
        ("--layers 3 --variants '{a: {map: cycle, distinct: 4}}'", ["--variants: a: distinct: expected a whole number"]),
        ("--variants '{a: {map: cycle, lora_rank: -1}}'", ["--variants: a: lora_rank: expected a whole number", "got -1"]),
        ("--variants '{a: {map: cycle, lora_rank: true}}'", ["--variants: a: lora_rank: expected a whole number", "got True"]),
        ("--variants '{a: {map: cycle, lora_rank: null}}'", ["--variants: a: lora_rank: expected a whole number", "got None"]),
        ("--variants '{a: {map: sandwich, distinct: 2}}'", ["--variants: a: distinct: the map determines the distinct layers"]),
        ("--variants '{a: {map: cycle, residual_scale: [1]}}'", ["--variants: a: residual_scale: expected one of none, 1/N"]),
        ("--variants '{a: {map: cycle, residual_scale: 2}}'", ["--variants: a: residual_scale: expected one of none, 1/N"]),
        ("--heads 4 --variants '{a: {map: cycle, width: 6}}'", ["--variants: a: width: expected a multiple of --heads 4"]),
        ("--variants '{a: {map: cycle, better_than: b}}'", ["--variants: a: better_than: expected another method of the run"]),
        ("--variants '{untied: {map: cycle}}'", ["expected distinct names, untied is repeated"]),
        ("--rates [.1]", ["--rates: expected at least two numbers between 0 and 1 in ascending order"]),
        ("--rates [.1,.01]", ["--rates: expected at least two numbers between 0 and 1 in ascending order"]),
        ("--rates [.01,.1] --seeds [3,1001]", ["--seeds: 1001 is one of the seeds that choose the learning rates"]),
        ("--initial_std 0", ["--initial_std: expected a finite number > 0, got 0.0"]),
        ("--table_rate 0", ["--table_rate: expected a finite number > 0, got 0.0"]),
        ("--table_factors [1,2]", ["--table_factors: are chosen together with the learning rate; give --rates as well"]),
        (
            "--rates [.01,.1] --table_factors [2,1]",
            ["--table_factors: expected numbers > 0 in ascending order, got [2.0, 1.0]"],
        ),
        ("--rates [.01,.1] --table_factors [1,.inf]", ["--table_factors: expected numbers > 0 in ascending order"]),
        ("--rates [.01,.1] --table_factors [1,2] --table_rate 2", ["--table_rate: the factor is chosen among --table_factors"]),
        ("--rate_seeds 0", ["--rate_seeds: expected an integer >= 1, got 0"]),
        ("--ties published", ["--gradient: with --ties published expected owner, got all"]),
        ("--details published --objective masked", ["--details: the published details are those of a causal model; use own"]),
        ("--epsilon_floor 1.5", ["--epsilon_floor: expected a number between 0 and 1, got 1.5"]),
        ("--padding -1", ["--padding: expected a token id >= 0, got -1"]),
        (
            "--corpus text.txt --data_dir cache --vocab_size 300 --context 2 --padding 300",
            ["--padding: expected a token id <= ", "got 300"],
        ),
        ("--start thawed", ["--start", "told-tied"]),
        ("--context 1", ["--context: expected 2 (the begin token and another) to 65536, got 1"]),
        ("--width 10 --heads 4", ["--heads: 4 heads do not divide the width 10"]),
        ("--distributed", ["unknown option '--distributed'"]),
        (
            "--corpus text.txt --data_dir cache --vocab_size 300 --context 512",
            ["--context 512", "corpus", "a block needs 511"],
        ),
        ("--corpus text.txt --validation text.txt --data_dir cache", ["--test: required with --validation"]),
    ],
)
def test_bad_input(argv, words, here, monkeypatch, capsys):
    before = {name for name in tree(here) if not name.startswith("cache")}
    ended = command_here(shlex.split(argv), monkeypatch, capsys, STUDY)
    ended = ended._replace(out="") if "--corpus" in argv else ended  # the preparation of the text is announced
    assert_refused(ended, *words, script=SCRIPT)
    assert {name for name in tree(here) if not name.startswith("cache")} == before


def test_configurations_are_valid():
    files = sorted(CONFIGS.glob("*.yaml"))
    assert files
    for path in files:
        settings, _ = command_line.parse(Settings, STUDY.command, ["--config", str(path)])
        assert settings.resolved().out == f"runs/layer_tying/{path.stem}"


def test_methods_and_their_order():
    assert METHODS == (
        "agent", "random-agent", "untied", "all-one", "sequence", "cycle", "cycle-reversed", "sandwich", "middle-cycle",
        "reversed-halves",
        "random-map", "found-map",
    )  # fmt: skip
    assert set(METHODS) - set(NOT_STATIC) == set(MAPS) - {"untied"}
    names = Settings(maps={"mine": [0] * 12}, methods=["found-map", "untied", "agent"]).resolved().names
    assert names == ["agent", "untied", "mine", "found-map"]


def test_classes_that_share_a_learning_rate():
    variants = {
        "low-rank": {"map": "cycle", "lora_rank": 2},
        "narrow": {"map": "untied", "width": 32},
        "loop": {"map": [0] * 12},
        "scaled": {"map": "all-one", "residual_scale": "1/N"},
        "root": {"map": "all-one", "residual_scale": "1/sqrt(N)"},
        "continued": {"map": "cycle", "lora_rank": 2, "initial_weights": "a.safetensors"},
        "as-wide": {"map": "all-one", "width": 64},
    }
    settings = Settings(width=64, learning_rate=3e-3, variants=variants, maps={"my-loop": [0] * 12}).resolved()
    classes = {name: settings.class_of(name) for name in settings.names}
    assert classes == {
        "agent": "agent", "random-agent": "random-agent", "untied": "untied", "narrow": "variant narrow", "all-one": "looped",
        "loop": "looped", "my-loop": "looped", "low-rank": "adapted", "scaled": "scaled 1/N", "root": "scaled 1/sqrt(N)",
        "continued": "variant continued", "as-wide": "looped",
        **dict.fromkeys(("sequence", "cycle", "cycle-reversed", "sandwich", "reversed-halves", "random-map", "found-map"),
                        "shared"),
    }  # fmt: skip
    assert settings.classes == {
        "untied": "untied", "shared": "sequence", "looped": "all-one", "adapted": "low-rank", "scaled 1/N": "scaled",
        "scaled 1/sqrt(N)": "root", "variant narrow": "narrow",
        "variant continued": "continued", "agent": "agent", "random-agent": "random-agent",
    }  # fmt: skip
    assert list(settings.classes)[-2:] == ["agent", "random-agent"]
    assert [name for name, variant in settings.variants_by_name.items() if variant.width is not None] == ["narrow"]
    assert settings.form("narrow") == (32, 128, 0, 0.0)
    assert settings.form("scaled") == (64, 256, 0, -1.0)
    assert settings.form("root").residual_scale == -0.5


def test_no_tuned_model_needs_an_agent():
    """A random map of the run's size tunes for the methods after the agent."""
    settings = Settings(methods=["random-agent", "agent", "found-map", "untied"]).resolved()
    assert settings.classes == {
        "untied": "untied", "shared": "random-map", "agent": "agent", "random-agent": "random-agent",
    }  # fmt: skip
    assert Settings(methods=["found-map", "agent", "cycle"]).resolved().classes["shared"] == "cycle"
