"""Tests of the report of a synthetic run."""

import html as html_text
import re

import numpy as np
import pytest
from layer_runs import LAYERS, SIZES, STEPS, TOKENS_PER_WORD, findings_of, run, select_methods

from tiejax.lab.reporting.finding import tally
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.studies.layer_tying import figures, page
from tiejax.lab.studies.layer_tying.analysis import analyse
from tiejax.lab.studies.layer_tying.page import agents, tables
from tiejax.statistics.arms import select_seeds
from tiejax.statistics.claims import Claim, assess
from tiejax.system.json_values import plain


@pytest.fixture(scope="module")
def analysed():
    findings, runs = analyse(run(), SIZES, TOKENS_PER_WORD)
    return findings, runs, figures.plot_all(runs, findings)


@pytest.fixture(scope="module")
def pictures(analysed, tmp_path_factory):
    folder, saved = tmp_path_factory.mktemp("figures"), []
    for plot in analysed[2]:
        plot.figure.savefig(folder / f"{plot.name}.png", dpi=30)
        saved.append((plot.caption, folder / f"{plot.name}.png"))
    return saved


def page_of(findings, pictures, later=None, **changed):
    """Return the page of a run; later: settings that earlier runs do not have."""
    results = {
        **findings,
        "experiment": "layer_tying",
        "model": {"layers": LAYERS, "feed_forward": 512},
        "data": {
            "fingerprint": "ab12cd",
            "vocabulary": 4096,
            "splits": {"train": {"tokens": 1234567, "words": 987654}, "test": {"tokens": 4321, "words": 3210}},
        },
        "steps": STEPS,
        "rates": {},
        "tuning": {},
        "tuning_seeds": [],
        "timing": {"compile_s": 3.0, "train_s": 90.0, "model_steps_per_s": 42.0},
        **changed,
    }
    settings = {
        "layers": LAYERS, "width": 128, "heads": 2, "context": 64, "batch_size": 8, "learning_rate": 1e-3, "weight_decay": 0.01,
        "dropout": 0.2, "k": 1, "gradient": "all", "start": "tied", "reward": "negative-loss", "details": "own",
        "moments": "copy", "schedule": "constant", "warm_up": 0, "initial_std": 0.02,
        "epsilon_floor": 0.05, "architecture": "gpt2", "objective": "causal", "storage": "compact", "corpus": ["wikitext-2"],
        "tokenizer": None, "ties": "resolved", "variants": {"low": {"map": "cycle", "lora_rank": 2}},
    }  # fmt: skip
    settings |= later or {}
    facts = {"command": "python x", "versions": {"jax": "1"}, "python": "3.11", "devices": ["cpu"], "git_commit": "abc"}
    html = page.page(RunOnPage(plain(results), settings, "steps: 4\n", facts, pictures))
    return re.sub(r"data:image/png;base64,[^\"]+", "picture", html)


def test_report_shows_settings_claims_and_tables(analysed, pictures):
    findings = analysed[0]
    html = page_of(findings, pictures)
    assert html.count('src="picture"') == 4
    for text in (
        "Dynamic layer tying: gpt2, 4 layers of width 128", "wikitext-2", "1,234,567 (987,654 words) for train", "ab12cd",
        "byte-level BPE trained on the corpus, vocabulary 4,096", "heads 2, context 64, dropout 0.2, feed forward 512",
        "3 actions per episode, k 1, reward negative-loss, epsilon floor 0.05",
        "resolved, gradient all, moments copy, start tied, details own", "storage compact",
        "finished its steps (4 s, 4 s)", "arXiv:2401.12819", "steps: 4",
        "without their networks, 1,930 parameters each",  # (4 + 1) 128 + (128 + 1) 10
        "2 seeds: no difference can be decided", "as many models train at once as there are devices",
        "<td>untied</td><td>54.60 [54.60, 54.60]</td><td>4.00 [0.00, 26,",
        "<td>agent</td><td>2.0</td><td>1.5</td><td>50%</td><td>120</td><td>1.5</td>",
        "<td>agent</td><td>3</td><td>54.60</td><td>4.00</td><td>8.00</td><td>6.69</td><td>12.81</td><td>2</td><td>4</td>",
        "<td>agent, seed 3</td><td>0</td><td>1</td><td>2</td><td>0</td>",
        "<td>all-one</td><td>0</td><td>0</td><td>0</td><td>0</td>",
    ):  # fmt: skip
        assert text in html, text
    for row in findings["claims"]:
        assert f"<b>{row['id']}</b>" in html
    assert html.count("Reported by the paper.") == 4
    assert "random map" not in html
    assert "nan" not in html


def test_report_names_chosen_rates_and_variants(analysed, pictures):
    chosen = {
        "rates": {"untied": 0.002, "shared": 0.004},
        "tuning": {
            "untied": {"rates": [0.002], "losses": [[5.0, 5.1]], "best": 0.002, "at_edge": False, "method": "untied"},
            "shared": {"rates": [0.004], "losses": [[5.2, 5.3]], "best": 0.004, "at_edge": True, "method": "cycle"},
        },
        "tuning_seeds": [1000, 1001],
    }
    html = page_of(analysed[0], pictures, **chosen)
    words = "learning rates untied 0.002 (by untied), shared 0.004 (by cycle, the last that was tried), chosen on 2 seeds that"
    assert words in html
    assert "<td>shared</td><td>0.004 (chosen)</td><td>5.2500</td><td>5.2000, 5.3000</td>" in html
    assert "low: map cycle, lora_rank 2" in html
    assert "8 blocks, learning rate 0.001, schedule constant, warm up 0, weight decay 0.01" in page_of(analysed[0], pictures)


def test_report_shows_the_grid_of_rates_and_factors(analysed, pictures):
    """The pairs that were trained with the first seed alone, and those with every seed; runs before have no factors."""
    tried = {"rates": [0.002, 0.002, 0.004], "factors": [1.0, 2.0, 2.0], "losses": [[6.0], [5.2, 5.3], [5.4, None]],
             "best": 0.002, "best_factor": 2.0, "at_edge": True, "method": "untied"}  # fmt: skip
    chosen = {"rates": {"untied": 0.002}, "table_factors": {"untied": 2.0}, "tuning": {"untied": tried}, "tuning_seeds": [7, 8]}
    html = page_of(analysed[0], pictures, **chosen)
    assert "untied 0.002, times 2 for the embedding tables (by untied, the last that was tried), chosen on 2 seeds" in html
    assert "<td>untied</td><td>0.002</td><td>1</td><td>-</td><td>6.0000</td>" in html
    assert "<td>untied</td><td>0.002 (chosen)</td><td>2</td><td>5.2500</td><td>5.2000, 5.3000</td>" in html
    assert "<td>untied</td><td>0.004</td><td>2</td><td>inf</td><td>5.4000, inf</td>" in html
    fixed = page_of(analysed[0], pictures, later={"table_rate": 4.0})
    assert "8 blocks, learning rate 0.001, times 4 for the embedding tables, schedule constant" in fixed


def test_report_shows_continuations_whatever_the_tokens_spell(analysed, pictures):
    hostile = ["<script>alert(1)</script> `a` & b", "line\nend\x1b[31m\u202e\ud800", "  two  spaces"]
    generated = {
        "seed": 3,
        "temperature": 0.8,
        "prompts": ["the <b>", "\n", ""],
        "text": {"continuations": ["as written"] * 3, "distinct": 0.75},
        "methods": {
            "untied": {"continuations": hostile, "distinct": 0.5},
            "all-one": {"problem": "x.safetensors is <damaged>"},
        },
    }
    html = page_of(analysed[0], pictures, generated=generated)
    assert "Continuations of prompt 3 by models of seed 3 at temperature 0.8, which test no claim" in html
    shown = ["&lt;script&gt;alert(1)&lt;/script&gt; &#39;a&#39; &amp; b", r"line\nend\x1b[31m\u202e\ud800", "  two  spaces"]
    for text in shown:
        assert f"<td>untied</td><td>50 %</td><td><code>{text}</code></td>" in html, text
    assert html.count("<td>the text itself</td><td>75 %</td><td><code>as written</code></td>") == 3
    assert html.count("<td>all-one</td><td>-</td><td><code>none: x.safetensors is &lt;damaged&gt;</code></td>") == 3
    assert "<code>the &lt;b&gt;</code></th>" in html
    assert r"<code>\n</code></th>" in html
    for hidden in ("<script>", "\x1b", "\u202e", "\ud800"):
        assert hidden not in html
    assert "Continuations" not in page_of(analysed[0], pictures)
    found = tables(analysed[0] | {"tuning": {}, "generated": generated})
    ((columns, rows),) = [table for title, table in found.items() if title.startswith("Continuations of prompt 2 ")]
    assert columns == ["method", "share of distinct tokens", r"continuation of `\n`"]
    assert rows == [
        ["the text itself", "75 %", "`as written`"],
        ["untied", "50 %", r"`line\nend\x1b[31m\u202e\ud800`"],
        ["all-one", "-", "`none: x.safetensors is <damaged>`"],
    ]


def test_report_warns_of_excluded_seeds_and_explains_random_maps(analysed, pictures):
    findings = analysed[0]
    rows = [*findings["methods"], {**findings["methods"][0], "method": "random-map"}]
    broken = {"excluded_seeds": [9], "non_finite": [{"arm": "agent", "seed": 9, "step": 2}]}
    html = page_of(findings, pictures, methods=rows, **broken)
    assert "agent seed 9 (at step 2)" in html
    assert "A random map has as many distinct layers as the agent" in html


def test_one_seed_without_agents(pictures):
    metrics = select_seeds(select_methods(run(), "untied", "all-one"), np.array([True, False]), least_axes=2)
    findings, runs, rows = findings_of(metrics)
    assert [row["id"] for row in findings["claims"]] == ["from-untied/all-one"]
    assert findings["agents"] == {}
    assert rows["untied"]["test_perplexity"] == {"seeds": pytest.approx([8]), "mean": pytest.approx(8), "interval": None}
    assert [plot.name for plot in figures.plot_all(runs, findings)] == ["bytes", "learning"]
    html = page_of(findings, [])
    assert "<td>untied</td><td>54.60</td><td>8.00</td><td>22.63</td><td>8.17</td>" in html
    assert "nan" not in html
    assert page.finding(findings)[0].startswith("No claim")


def results_with(differences, seeds, **perplexities):
    """Return results with claims on these differences, as (estimand, sign, values), and perplexities by method."""
    methods = [{"method": name, "test_perplexity": {"mean": value}} for name, value in perplexities.items()]
    rows = assess(
        [Claim(name, "Some words.", words, np.array(values), sign) for name, (words, sign, values) in differences.items()]
    )
    return {"seeds": list(range(seeds)), "methods": methods, "claims": rows}


def test_finding_follows_the_verdicts():
    """Equal differences of 8 seeds have p 2^-7, which three claims multiply by 3, 2 and 1; alternating signs decide nothing."""
    found = results_with(
        {
            "perplexity/agent": ("the loss of the agent", -1, [0.25] * 8),
            "learns/random-agent": ("the loss of chance", -1, [0.25, -0.25] * 4),
            "memory/mean": ("the memory", -1, [-0.5] * 8),
        },
        seeds=8,
        agent=109.4,
        untied=84.44,
    )
    answer, undecided, count = page.finding(found)
    assert answer == (
        'The loss of the agent is 0.25 [0.25, 0.25] (8 seeds); the claim "Some words" is contradicted. '
        "Some words: the memory is -0.5 [-0.5, -0.5] (8 seeds; supported)."
    )
    assert undecided == '"Some words" is not decided with 8 seeds: the loss of chance is 0 [-0.25, 0.25].'
    assert count == tally(found["claims"])
    assert page.finding(results_with({}, 1, agent=3.0, untied=2.0)) == [tally([])]


def test_finding_includes_the_claims_about_variants():
    found = results_with({"better/low": ("the loss of low", -1, [-0.5] * 8)}, 8, untied=2.0)
    assert page.finding(found)[0] == "Some words: the loss of low is -0.5 [-0.5, -0.5] (8 seeds; supported)."


def test_report_opens_with_the_finding(analysed, pictures):
    answer = page.finding(analysed[0])
    assert len(answer) == 3
    assert answer[1].startswith("It is not known whether the agent's values predict its returns")
    assert answer[0].count("not decided with 2 seeds") == 3
    html = html_text.unescape(page_of(analysed[0], pictures))
    assert all(f"<p>{sentence}</p>" in html for sentence in answer)
    assert html.index(answer[0]) < html.index("<h2>")


def test_table_of_agents_shows_how_far_the_values_are_trained():
    """Eight episodes, of which the last two count; the values of the second agent's first seed are untrained there."""
    late = {"episode": list(range(8)), "distinct": [[9.0] * 6 + [2.0, 4.0]], "reward": [[0.0] * 6 + [-4.0, -6.0]]}
    trained = {"q_loss": [[99.0] * 6 + [16.0, 9.0]], "value_error": [0.2, 0.4]}
    by_name = {"agent": late | trained, "random-agent": late | {"q_loss": [[None] * 8], "value_error": [None, 0.5]}}
    columns, rows = agents(by_name)
    assert columns == [
        "agent",
        "episodes",
        "distinct layers",
        "reward",
        "error of Q",
        "error / |reward|",
        "|Q - return| / |return|",
    ]
    assert rows == [
        ["agent", "8", "3.0", "-5.000", "3.500", "75 %", "30 %"],  # (4 / 4 + 3 / 6) / 2
        ["random-agent", "8", "3.0", "-5.000", "-", "-", "-"],
    ]


def test_bigram_and_gate_on_the_page(analysed, pictures):
    bigram = {"seed": 3, "losses": {"test": np.log(8.0), "validation": np.log(16.0), "selection": 3.0}}
    data = {"fingerprint": "ab", "vocabulary": 9, "splits": {"test": {"tokens": 30, "words": 20}}}
    failed = "No claim is tested, since the untied models end with 4.000 nats."
    html = page_of(analysed[0], pictures, bigram=bigram, gate={"failed": failed}, data=data)
    assert "<td>bigram</td><td>-</td><td>8.00</td><td>22.63</td><td>16.00</td><td>-</td>" in html
    sentence = (
        "A bigram model of the tokens that one seed sees has a test perplexity of 8.00, untied models 4.00, agent models 4.00."
    )
    found = page.finding(plain(analysed[0]) | {"bigram": bigram, "gate": {"failed": failed}, "data": data})
    assert (found[0], found[-2]) == (failed, sentence)
    assert f"<p>{sentence}</p>" in html
    passed = page.finding(plain(analysed[0]) | {"bigram": bigram, "gate": {"failed": ""}, "data": data})
    assert passed == found[1:]


@pytest.mark.parametrize(("errors", "words"), [([0.1, 0.2], ""), ([0.1, 0.4], "error is 25 % of"), ([0.1, None], "not known")])
def test_an_agent_that_learns_is_named_only_if_its_values_predict_its_returns(errors, words):
    found = results_with({"learns/random-agent": ("the loss of chance", -1, [-0.5] * 8)}, 8, agent=3.0)
    agent = {"episode": [0], "distinct": [[2.0]], "reward": [[-4.0]], "q_loss": [[1.0]], "value_error": errors}
    found["agents"] = {"agent": agent}
    answer = page.finding(found)
    assert any("loss of chance" in sentence for sentence in answer) is not bool(words)
    assert words in " ".join(answer)
    assert ("othing is said about an agent that learns" in " ".join(answer)) is bool(words)
    columns, rows = agents(found["agents"])
    assert columns[-1] == "|Q - return| / |return|"
    assert rows[0][-1] == ("-" if None in errors else f"{np.mean(errors):.0%}".replace("%", " %"))


def test_table_of_learning_rates(analysed):
    tried = {"rates": [0.1, 0.2], "losses": [[5.0, None], [4.0, 4.5]], "best": 0.2, "at_edge": True, "method": "cycle"}
    found = tables(plain(analysed[0]) | {"tuning": {"shared": tried}, "tuning_seeds": [7, 8]})
    _, rows = found["Learning rates, chosen on seeds 7, 8 only"]
    assert rows == [["shared", "0.1", "inf", "5.0000, inf"], ["shared", "0.2 (chosen)", "4.2500", "4.0000, 4.5000"]]


def test_masked_models_have_no_perplexity_per_word(pictures):
    """Their loss is that of the masked tokens, not of the words of a text."""
    findings, _ = analyse(run(), SIZES, {})
    assert all("test_perplexity_per_word" not in row for row in findings["methods"])
    html = page_of(findings, pictures, later={"objective": "masked"})
    assert "per word" not in html
    assert "<td>agent</td><td>3</td><td>54.60</td><td>4.00</td><td>6.69</td><td>12.81</td><td>2</td><td>4</td>" in html
