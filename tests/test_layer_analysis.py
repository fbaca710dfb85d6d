"""Analysis, figures and page of a run that ties layers: tiny arrays whose answers are worked out by hand."""

import json
import re

import numpy as np
import pytest

from tiejax.runs.run_directory import plain
from tiejax.studies.layer_tying import claims as analysis
from tiejax.studies.layer_tying import figures as layer_figures
from tiejax.studies.layer_tying import page as layer_tying

LAYERS, STEPS = 4, 4
METHODS = ("untied", "agent", "all-one")
# By number of distinct layers; parameters, gradients and optimizer together hold 1600 + 160 n bytes.
SIZES = {
    n: {
        "parameters": 100 + 10 * n,
        "parameter_bytes": 400 + 40 * n,
        "gradient_bytes": 400 + 40 * n,
        "optimizer_bytes": 800 + 80 * n,
        "peak_bytes": 5000 + 1000 * n,
        "move_bytes": 9000 + n,
    }
    for n in range(1, 5)
}
PieceS_PER_WORD = {"validation": 2.0, "test": 1.5}
AGENT_MAPS = [
    [[0, 0, 0, 0], [0, 0, 2, 0], [0, 0, 2, 0], [0, 1, 2, 0]],
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
]


def run():
    """Three methods, seeds 3 and 5, four steps of one action each: three actions of episode 1, the first of episode 2."""
    untied, one = [[0, 1, 2, 3]] * 2, [[0, 0, 0, 0]] * 2
    last = [maps[-1] for maps in AGENT_MAPS]
    return {
        "methods": np.array(METHODS),
        "seeds": np.array([3, 5]),
        "train_loss": np.full((3, 2, STEPS), 4.0, np.float32),
        "distinct": np.array([[[4] * 4] * 2, [[1, 2, 2, 3], [1] * 4], [[1] * 4] * 2]),
        "validation_step": np.array([0, 2, 4]),
        "validation_loss": np.array([
            [[5, 3.0, 2.0], [5, 3.2, 2.2]], [[5, 2.8, 1.8], [5, 2.9, 1.9]], [[5, 3.5, 2.5], [5, 3.6, 2.6]],
        ]),
        "best_step": np.full((3, 2), 4),
        "best_owner": np.array([untied, last, one]),
        "final_owner": np.array([untied, last, one]),
        "validation_loss_best": np.array([[2.1, 2.3], [1.9, 2.0], [2.6, 2.7]]),
        "test_loss": np.log([[8.0, 2.0], [4.0, 4.0], [16.0, 4.0]]),
        "time_step": np.array([
            [[1, 1, 1, 1], [1, 1, 1, 3]], [[2, 2, 2, 2], [1, 1, 1, 1]], [[0.5, 0.5, 1, 1], [2, 2, 2, 2]],
        ]),
        "agents": np.array(["agent"]),
        "action_episode": np.array([1, 1, 1, 2]),
        "action_layer": np.array([1, 2, 3, 1]),
        "action": np.array([[[0, 2, 0, 1], [0, 0, 0, 0]]]),
        "greedy": np.zeros((1, 2, 4), bool),
        "reward": np.array([[[-6.0, -5.0, -4.0, -3.0], [-6.0, -6.0, -6.0, -2.0]]]),
        "q_loss": np.array([[[1.0, np.nan, 3.0, 0.5], [1.0, 1.0, 1.0, np.nan]]]),
        "epsilon": np.array([1.0, 1.0, 1.0, 0.95]),
        "action_owner": np.array([AGENT_MAPS]),
    }  # fmt: skip


def found_of(metrics):
    found, runs = analysis.analyse(metrics, SIZES, PieceS_PER_WORD)
    return found, runs, {row["method"]: row for row in found["methods"]}


def without_agents(metrics):
    ours = ("agents", "action", "greedy", "reward", "q_loss", "epsilon")
    return {name: values for name, values in metrics.items() if not name.startswith(ours)}


def of_methods(metrics, *names):
    """Return the arrays of some methods alone."""
    chosen = [METHODS.index(name) for name in names]
    shared = ("seeds", "validation_step")
    return {name: values if name in shared else values[chosen] for name, values in without_agents(metrics).items()}


def test_perplexities_are_of_mean_nats_with_students_interval():
    rows = found_of(run())[2]
    untied = rows["untied"]
    assert untied["test_perplexity"]["seeds"] == pytest.approx([8, 2])
    assert untied["test_perplexity"]["mean"] == pytest.approx(4)  # sqrt(8 x 2)
    # ln 8 and ln 2: standard error ln 2, one degree of freedom, t = 12.7062 (tables).
    assert untied["test_perplexity"]["interval"] == pytest.approx([4 * 2**-12.7062, 4 * 2**12.7062], rel=1e-4)
    assert untied["test_perplexity_per_word"]["seeds"] == pytest.approx([8**1.5, 2**1.5])
    assert untied["test_perplexity_per_word"]["mean"] == pytest.approx(8)
    assert untied["test_perplexity_per_word"]["interval"] == pytest.approx([8 * 8**-6.3531, 8 * 8**6.3531], rel=1e-3)
    assert rows["all-one"]["validation_perplexity"]["mean"] == pytest.approx(np.exp(2.65))
    assert rows["agent"]["test_perplexity"]["interval"] == pytest.approx([4, 4])


def test_layers_and_bytes_of_each_method():
    """Bytes are means over steps: the agent's first seed holds 1, 2, 2 and 3 distinct layers, 2 on average."""
    rows = found_of(run())[2]
    agent = rows["agent"]
    assert agent["distinct"] == [3, 1]
    assert agent["distinct_in_training"] == [2, 1]
    assert agent["replicated"] == [0.25, 0.75]
    assert agent["parameters"] == [130, 110]
    assert agent["bytes"]["parameter_bytes"] == {"seeds": [480, 440], "largest": [520, 440]}
    assert agent["bytes"]["gradient_bytes"] == {"seeds": [480, 440], "largest": [520, 440]}
    assert agent["bytes"]["optimizer_bytes"] == {"seeds": [960, 880], "largest": [1040, 880]}
    assert agent["bytes"]["stored_bytes"] == {"seeds": [1920, 1760], "largest": [2080, 1760]}
    assert agent["bytes"]["peak_bytes"] == {"seeds": [7000, 6000], "largest": [8000, 6000]}
    assert rows["untied"]["bytes"]["stored_bytes"] == {"seeds": [2240, 2240], "largest": [2240, 2240]}
    assert rows["all-one"]["replicated"] == [0.75, 0.75]
    assert agent["final_owner"] == [[0, 1, 2, 0], [0, 0, 0, 0]]


def test_seconds_a_step_are_the_mean_over_seeds_of_medians():
    rows = found_of(run())[2]
    assert rows["untied"]["seconds_per_step"] == {"seeds": [1, 1], "mean": 1}
    assert rows["agent"]["seconds_per_step"] == {"seeds": [2, 1], "mean": 1.5}
    assert rows["all-one"]["seconds_per_step"] == {"seeds": [0.75, 2], "mean": 1.375}


def test_equal_time_is_that_of_the_fastest_method_of_the_seed():
    """Steps take medians over both seeds: untied 1 s, whatever one of them took; all-one 1.5; the agent 1, then 2, 2, 2.

    Seed 3: untied is done after 4 s; the agent is then at a quarter of the way from step 2 (3 s) to step 4 (7 s).
    """
    found, runs, rows = found_of(run())
    assert found["equal_time_s"] == [4, 4]
    assert {name: row["equal_time_step"] for name, row in rows.items()} == {
        "untied": [4, 4], "agent": [2, 4], "all-one": [2, 2],
    }  # fmt: skip
    expected = {"untied": [2.0, 2.2], "agent": [2.8 - 0.25, 1.9], "all-one": [3.5 - 1 / 3, 3.6 - 1 / 3]}
    for name, row in rows.items():
        assert row["equal_time_loss"] == pytest.approx(expected[name])
    assert rows["untied"]["equal_time_perplexity"]["mean"] == pytest.approx(np.exp(2.1))
    assert runs["validation_seconds"][:, 0].tolist() == [[0, 2, 4], [0, 3, 7], [0, 3, 6]]
    assert runs["validation_seconds"][:, 1].tolist() == [[0, 2, 4], [0, 2, 4], [0, 3, 6]]


def test_training_perplexity_is_that_of_the_last_steps():
    metrics = run()
    metrics["train_loss"][0, :, -1] = 2.0  # a tenth of four steps is one
    assert found_of(metrics)[2]["untied"]["train_perplexity"]["mean"] == pytest.approx(np.exp(2))
    assert found_of(metrics)[2]["agent"]["train_perplexity"]["mean"] == pytest.approx(np.exp(4))


def test_a_seed_of_which_one_method_diverged_is_left_out_everywhere():
    """A seed 9 before the others: untied breaks down at step 1, all-one at its last validation."""
    whole = run()
    shared = ("methods", "validation_step", "agents", "action_episode", "action_layer", "epsilon")
    metrics = {
        name: values if name in shared else np.concatenate([values[:, :1], values], axis=1)
        for name, values in whole.items()
        if name != "seeds"
    }
    metrics["seeds"] = np.array([9, 3, 5])
    metrics["train_loss"][0, 0, 1:] = np.nan
    metrics["validation_loss"][0, 0, 1:] = np.nan
    metrics["validation_loss"][2, 0, 2] = np.inf
    metrics["test_loss"][0, 0] = np.nan
    found, runs, _ = found_of(metrics)
    assert found["non_finite"] == [
        {"arm": "untied", "seed": 9, "step": 1}, {"arm": "all-one", "seed": 9, "step": 4},
    ]  # fmt: skip
    assert (found["seeds"], found["excluded_seeds"]) == ([3, 5], [9])
    expected, kept, _ = found_of(whole)
    for name in ("methods", "claims", "agents", "equal_time_s"):
        assert plain(found[name]) == plain(expected[name])
    for name, values in kept.items():
        np.testing.assert_array_equal(runs[name], values)


def test_no_finite_seed_leaves_nothing_to_tell():
    metrics = run()
    metrics["train_loss"][0] = np.nan
    found, runs = analysis.analyse(metrics, SIZES, PieceS_PER_WORD)
    assert (found["seeds"], found["methods"], found["claims"], found["excluded_seeds"]) == ([], [], [], [3, 5])
    assert layer_tying.drawn(runs, found) == []
    assert layer_tying.tables(found) == {}


def test_a_size_that_nobody_measured_is_named():
    with pytest.raises(ValueError, match="sizes: nothing is said of 3 distinct layers"):
        analysis.analyse(run(), {n: SIZES[n] for n in (1, 2, 4)}, PieceS_PER_WORD)


def test_claims_take_the_differences_that_they_name():
    found, _, _ = found_of(run())
    rows = {row["id"]: row for row in found["claims"]}
    halves = {  # medians of two seeds
        "perplexity/agent": (np.log(4 / 8) + np.log(4 / 2)) / 2,
        "perplexity-equal-time/agent": ((2.55 - 2.0) + (1.9 - 2.2)) / 2,
        "replicated/agent": ((0.25 - 0.75) + (0.75 - 0.75)) / 2,
        "memory/mean": (np.log(1920 / 2240) + np.log(1760 / 2240)) / 2,
        "memory/most": (np.log(2080 / 2240) + np.log(1760 / 2240)) / 2,
        "static/all-one": (np.log(4 / 16) + np.log(4 / 4)) / 2,
    }
    assert set(rows) == set(halves)
    for name, value in halves.items():
        assert rows[name]["estimate"] == pytest.approx(value, abs=1e-12)
        assert (rows[name]["n"], rows[name]["verdict"]) == (2, "undecided")
    reported = {"perplexity/agent", "replicated/agent", "memory/mean", "memory/most"}
    assert {name for name in rows if rows[name]["reported"]} == reported
    assert "82.1%" in rows["memory/mean"]["statistic"]  # (1920 + 1760) / 2 / 2240
    json.dumps(plain(found), allow_nan=False)


def test_every_method_has_its_claim():
    """One seed; the loss of each method is its place in the list, 0, 1, ..."""
    names = ("untied", "all-one", "my-map", "random-map", "random-agent", "agent", "found-map")
    rows = [
        {"method": name, "test_loss": [float(place)], "equal_time_loss": [2.0 * place], "replicated": [1.0],
         "distinct_in_training": [3.0],
         "bytes": {"stored_bytes": {kind: [4.0 if name == "untied" else 1.0] for kind in ("seeds", "largest")}}}
        for place, name in enumerate(names)
    ]  # fmt: skip
    claims = {claim.id: (claim.differences.tolist(), claim.sign) for claim in analysis.claims(rows)}
    assert claims == {
        "perplexity/agent": ([5], -1), "perplexity-equal-time/agent": ([10], -1), "replicated/agent": ([0.25], 1),
        "memory/mean": ([np.log(0.25)], -1), "memory/most": ([np.log(0.25)], -1), "learns/found-map": ([3], -1),
        "learns/random-map": ([2], -1), "learns/random-agent": ([1], -1),
        "retrained/found-map": ([1], -1), "static/all-one": ([4], -1), "static/my-map": ([3], -1),
    }  # fmt: skip
    assert analysis.claims([row for row in rows if row["method"] not in ("agent", "found-map")]) == []
    assert {claim.id for claim in analysis.claims(rows[5:])} == {"replicated/agent", "retrained/found-map"}


def test_episodes_have_the_means_of_their_actions_and_the_map_at_their_end():
    found, runs, _ = found_of(run())
    agent = found["agents"]["agent"]
    assert agent["episode"] == [1, 2]
    assert agent["reward"] == [[-5, -3], [-6, -2]]
    np.testing.assert_array_equal(agent["q_loss"], [[2, 0.5], [1, np.nan]])
    np.testing.assert_allclose(agent["distinct"], [[5 / 3, 3], [1, 1]])
    assert runs["episode_owner"].tolist() == [[[maps[2], maps[3]] for maps in AGENT_MAPS]]
    assert runs["episode_epsilon"].tolist() == [1, 0.95]


def test_distinct_layers_of_maps():
    maps = [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 2, 3], [0, 0, 2, 0]]
    assert analysis.distinct_layers(np.array(maps)).tolist() == [len(set(one)) for one in maps]


@pytest.fixture(scope="module")
def analysed():
    found, runs = analysis.analyse(run(), SIZES, PieceS_PER_WORD)
    return found, runs, layer_tying.drawn(runs, found)


@pytest.fixture(scope="module")
def pictures(analysed, tmp_path_factory):
    folder, kept = tmp_path_factory.mktemp("figures"), []
    for item in analysed[2]:
        item.figure.savefig(folder / f"{item.name}.png", dpi=30)
        kept.append((item.caption, folder / f"{item.name}.png"))
    return kept


def test_figures_show_the_maps_and_every_seed(analysed):
    shown = {item.name: item.figure for item in analysed[2]}
    assert list(shown) == ["map", "learning", "methods", "agent", "maps"]
    panels = shown["map"].axes
    assert [one.get_title() for one in panels[:2]] == ["seed 3", "seed 5"]
    # Layers upwards, episodes to the right.
    np.testing.assert_array_equal(panels[0].collections[0].get_array(), [[0, 0], [0, 1], [2, 2], [0, 0]])
    assert panels[0].get_xlim() == (0.5, 2.5)
    assert panels[0].collections[0].get_cmap().N == LAYERS
    over_steps, over_time = shown["learning"].axes
    assert len(over_steps.lines) == len(over_time.lines) == 3 * (2 + 1)
    np.testing.assert_allclose(over_time.lines[0].get_xdata(), [2, 4])
    np.testing.assert_allclose(over_steps.lines[5].get_ydata(), np.exp([2.85, 1.85]))  # the agent, the mean of nats
    np.testing.assert_allclose(over_time.lines[5].get_xdata(), [2.5, 5.5])  # 3 and 2 s, 7 and 4 s
    perplexity, memory, seconds = shown["methods"].axes
    np.testing.assert_allclose(perplexity.lines[0].get_xdata(), [8, 2])
    np.testing.assert_allclose(memory.lines[1].get_xdata(), np.array([1920, 1760]) / 2**20)
    np.testing.assert_allclose(seconds.lines[2].get_xdata(), [0.75, 2])
    assert [len(one.lines) for one in shown["agent"].axes] == [3, 3, 3, 2]
    cells = shown["maps"].axes[0]
    labels = [label.get_text() for label in cells.get_yticklabels()]
    assert labels == ["untied", "agent, seed 3", "agent, seed 5", "all-one"]
    written = np.array([text.get_text() for text in cells.texts]).reshape(4, LAYERS)
    assert written.tolist() == [list("0123"), list("0120"), list("0000"), list("0000")]


@pytest.mark.parametrize("layers", [1, 4, 12, 48])
def test_every_layer_has_a_colour_of_its_own(layers):
    colours = layer_figures.owner_colours(layers).colors
    apart = np.abs(colours[:, None] - colours[None]).max(-1) + np.eye(layers)
    assert apart.min() > 0.01
    # Neighbours must be told apart in a small cell.
    assert (np.diag(apart, 1) > 0.1).all()


def test_methods_keep_their_colours_and_differ():
    names = [*METHODS, "sequence", "cycle", "cycle-reversed", "sandwich", "reversed-halves", "mine", "random-map", "found-map"]
    styles = layer_figures.styles(names)
    assert len({(style.colour, style.line) for style in styles.values()}) == len(names)
    assert styles["agent"] == layer_figures.styles(["agent"])["agent"]


def test_at_most_six_seeds_are_panels_of_the_map():
    owner = np.zeros((1, 7, 2, 3), int)
    runs = {"seeds": np.arange(7), "agents": np.array(["agent"]), "episode": np.array([1, 2]), "episode_owner": owner}
    item = layer_tying.tie_maps(runs)
    assert [one.get_title() for one in item.figure.axes if one.get_title()] == [f"seed {seed}" for seed in range(6)]
    assert "The first 6 of 7 seeds" in item.caption


def page_of(found, pictures, **changed):
    results = {
        **found,
        "experiment": "layer_tying",
        "model": {"layers": LAYERS, "feed_forward": 512},
        "data": {
            "fingerprint": "ab12cd",
            "vocabulary": 4096,
            "splits": {"train": {"tokens": 1234567, "words": 987654}, "test": {"tokens": 4321, "words": 3210}},
        },
        "steps": STEPS,
        "sizes": SIZES,
        "timing": {"compile_s": 3.0, "train_s": 90.0, "model_steps_per_s": 42.0},
        **changed,
    }
    config = {
        "layers": LAYERS, "width": 128, "heads": 2, "context": 64, "batch_size": 8, "learning_rate": 1e-3, "weight_decay": 0.01,
        "dropout": 0.2, "k": 1, "gradient": "all", "start": "tied", "reward": "negative-loss", "moments": "copy",
        "epsilon_floor": 0.05, "architecture": "gpt2", "objective": "causal", "storage": "compact", "corpus": ["wikitext-2"],
        "tokenizer": None, "ties": "resolved",
    }  # fmt: skip
    facts = {"command": "python x", "versions": {"jax": "1"}, "python": "3.11", "devices": ["cpu"], "git_commit": "abc"}
    page = layer_tying.page(plain(results), config, "steps: 4\n", facts, pictures)
    return re.sub(r"data:image/png;base64,[^\"]+", "picture", page)


def test_the_page_says_what_was_run_and_found(analysed, pictures):
    found = analysed[0]
    page = page_of(found, pictures)
    assert page.count('src="picture"') == 5
    for text in (
        "Dynamic layer tying: gpt2, 4 layers of width 128", "wikitext-2", "1,234,567 (987,654 words) for train", "ab12cd",
        "byte-level BPE trained on the corpus, vocabulary 4,096", "2 heads, context 64, dropout 0.2, causal; feed forward 512",
        "3 actions an episode, k = 1 batches an action, reward negative-loss, epsilon at least 0.05",
        "resolved, gradient all, moments copy, start tied", "storage compact",
        "all its steps (4 s, 4 s)", "arXiv:2401.12819", "steps: 4",
        "2 seeds: below 6 no claim is decided", "as many models train at once as there are devices",
        "<td>untied</td><td>54.60 [54.60, 54.60]</td><td>4.00 [0.00, 26,",
        "<td>agent</td><td>2.0</td><td>1.5</td><td>50%</td><td>120</td><td>1.5</td>",
        "<td>agent</td><td>3</td><td>54.60</td><td>4.00</td><td>8.00</td><td>6.69</td><td>12.81</td><td>2</td><td>4</td>",
        "<td>agent, seed 3</td><td>0</td><td>1</td><td>2</td><td>0</td>",
        "<td>all-one</td><td>0</td><td>0</td><td>0</td><td>0</td>",
    ):  # fmt: skip
        assert text in page, text
    for row in found["claims"]:
        assert f"<b>{row['id']}</b>" in page
    assert page.count("Reported by the paper.") == 4
    assert "random map" not in page
    assert "nan" not in page


def test_the_page_warns(analysed, pictures):
    found = analysed[0]
    rows = [*found["methods"], {**found["methods"][0], "method": "random-map"}]
    broken = {"excluded_seeds": [9], "non_finite": [{"arm": "agent", "seed": 9, "step": 2}]}
    page = page_of(found, pictures, methods=rows, **broken)
    assert "agent seed 9 (at step 2)" in page
    assert "A random map has as many distinct layers as the agent" in page


def test_one_seed_without_agents(pictures):
    metrics = analysis.select_seeds(of_methods(run(), "untied", "all-one"), np.array([True, False]))
    found, runs, rows = found_of(metrics)
    assert found["claims"] == []
    assert found["agents"] == {}
    assert rows["untied"]["test_perplexity"] == {"seeds": pytest.approx([8]), "mean": pytest.approx(8), "interval": None}
    assert [item.name for item in layer_tying.drawn(runs, found)] == ["learning", "methods", "maps"]
    page = page_of(found, [])
    assert "<td>untied</td><td>54.60</td><td>8.00</td><td>22.63</td><td>8.17</td>" in page
    assert "nan" not in page
