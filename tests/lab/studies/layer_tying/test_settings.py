"""What may be asked: bad input is refused in one line that names the option, and configurations are what they say."""

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
        ("--details published --objective masked", ["--details: those that are published are of a causal model; give own"]),
        ("--epsilon_floor 1.5", ["--epsilon_floor: must lie between 0 and 1, got 1.5"]),
        ("--padding -1", ["--padding: must be the number of a token, at least 0, got -1"]),
        (
            "--corpus text.txt --data_dir cache --vocab_size 300 --context 2 --padding 300",
            ["--padding: there is no token 300; the vocabulary ends at "],
        ),
        ("--start thawed", ["--start", "told-tied"]),
        ("--context 1", ["--context: must lie between 2"]),
        ("--width 10 --heads 4", ["--heads: 4 heads do not divide the width 10"]),
        ("--distributed", ["unknown option --distributed"]),
        (
            "--corpus text.txt --data_dir cache --vocab_size 300 --context 512",
            ["--context 512", "corpus", "a block takes 511"],
        ),
        ("--corpus text.txt --validation text.txt --data_dir cache", ["--test: needed, since --validation is given"]),
    ],
)
def test_bad_input(argv, words, here, monkeypatch, capsys):
    before = {name for name in tree(here) if not name.startswith("cache")}
    ended = command_here(shlex.split(argv), monkeypatch, capsys, STUDY)
    ended = ended._replace(out="") if "--corpus" in argv else ended  # preparing text says where it is put
    assert_refused(ended, *words, script=SCRIPT)
    assert {name for name in tree(here) if not name.startswith("cache")} == before


def test_every_configuration_is_one():
    files = sorted(CONFIGS.glob("*.yaml"))
    assert files
    for path in files:
        settings, _ = command_line.parse(Settings, STUDY.command, ["--config", str(path)])
        assert settings.resolved().out == f"runs/layer_tying/{path.stem}"


def test_methods_are_agents_fixed_maps_and_what_waits_for_an_agent():
    assert METHODS == (
        "agent", "random-agent", "untied", "all-one", "sequence", "cycle", "cycle-reversed", "sandwich", "reversed-halves",
        "random-map", "found-map",
    )  # fmt: skip
    assert set(METHODS) - set(NOT_STATIC) == set(MAPS) - {"untied"}
    names = Settings(maps={"mine": [0] * 12}, methods=["found-map", "untied", "agent"]).resolved().names
    assert names == ["agent", "untied", "mine", "found-map"]
