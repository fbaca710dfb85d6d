"""Analysis, figures, page and event files of a run on text: synthetic trajectories whose answers are set by hand."""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog

from tiejax.reporting import figures
from tiejax.reporting.event_files import EventFiles
from tiejax.runs.run_directory import plain
from tiejax.studies.exor import page as exor
from tiejax.studies.text_mlm import claims as analysis
from tiejax.studies.text_mlm import page as text_mlm

ROOT = Path(__file__).parent.parent
RECORDS, VALIDATIONS, START = 20, 5, 4.8
BOTH = (("twins .5", 0.5, 30), ("twins .1", 0.1, 12))
# ln(d_end / d_start) by table and kind of set: what the theory says.
CHANGE = {
    "input": {"holding": -2.0, "conflict": -1.5, "unrelated": 0.1},
    "output": {"holding": -1.8, "conflict": -0.2, "unrelated": 0.1},
    "tied": {"holding": -2.2, "conflict": -0.3, "unrelated": 0.1},
}
COST = 0.05
DECAY = 0.7  # what weight decay takes of ln(distance)


def run(seeds=10, sets=BOTH, unrelated=40, change=CHANGE):
    """Distances that go exponentially from START to START exp(change), both a little different in every seed and pair."""
    rng = np.random.default_rng(0)
    numbers = [*(pairs for *_, pairs in sets), unrelated]
    pair_set = np.repeat(np.arange(len(numbers)), numbers)
    kinds = [*("holding" if p == 0.5 else "conflict" for _, p, _ in sets), "unrelated"]
    along = np.minimum(np.arange(RECORDS) / (RECORDS - 3), 1)  # the last tenth, two records, is flat
    small = 0.05 * (rng.uniform(-1, 1, (seeds, 1)) + rng.uniform(-1, 1, (1, len(pair_set))))
    start = START * np.exp(rng.uniform(-0.1, 0.1, (seeds, len(pair_set))))

    def distance(table):
        end = np.array([change[table][kinds[place]] for place in pair_set]) + small
        return start[:, None] * np.exp(along[:, None] * end[:, None])

    shape, vshape = (2, seeds, RECORDS), (2, seeds, VALIDATIONS)
    tied = distance("tied")
    noise = rng.uniform(-0.01, 0.01, seeds)[:, None]
    loss = np.stack([4 + 0 * noise, 4 + COST + noise]) + np.zeros(vshape)
    bucket_loss = loss[..., None] + np.array([-1.0, 0.0, 1.0])
    counts = np.broadcast_to([100, 0, 300], (*vshape, 3)).copy()
    bucket_loss[..., 1] = np.nan
    return {
        "arms": np.array(["untied", "tied"]),
        "seeds": np.arange(seeds) + 7,
        "pair_words": np.array([f"word{k}" for k in range(len(pair_set))]),
        "pair_set": pair_set,
        "set_names": np.array([*(name for name, *_ in sets), "unrelated"]),
        "set_probability": np.array([*(p for _, p, _ in sets), np.nan]),
        "step": np.arange(RECORDS) * 100,
        "distance_input": np.stack([distance("input"), tied]),
        "distance_output": np.stack([distance("output"), tied]),
        "norm_input": np.full(shape, 3.0),
        "norm_output": np.full(shape, 2.0),
        "train_loss": np.full(shape, 4.5),
        "train_accuracy": np.full(shape, 0.25),
        "finite": np.ones(shape, bool),
        "overflow": np.zeros(shape, int),
        "use_ratio": np.full(shape, 2.0),
        "use_cosine": np.full(shape, 0.1),
        "use_bucket_input": np.full((*shape, 3), 1.0),
        "use_bucket_output": np.full((*shape, 3), [1.0, 2.0, 3.0]),
        "validation_step": np.arange(VALIDATIONS) * 475,
        "validation_loss": loss,
        "validation_accuracy": 0.5 - loss / 10,
        "validation_bucket_loss": bucket_loss,
        "validation_bucket_accuracy": 0.5 - bucket_loss / 10,
        "validation_bucket_count": counts,
        "bucket_names": np.array(["1-100", "101-1000", "twins"]),
    }


def rows_of(metrics):
    return {row["id"]: row for row in analysis.analyse(metrics, DECAY)[0]["claims"]}


def both_rows(*claims):
    return {f"{claim}/{over}" for claim in claims for over in ("seeds", "pairs")}


CONVERGE = [f"converge/{table}" for table in CHANGE]
CONFLICT = ["conflict-converge/input", "conflict-apart/output", "conflict-apart/tied"]
UNRELATED = [f"unrelated/{table}" for table in CHANGE]
TYING = {"tying/validation-loss", "tying/validation-accuracy"}


def test_claims_of_a_run_that_does_what_the_theory_says():
    rows = rows_of(run())
    assert set(rows) == both_rows(*CONVERGE, *CONFLICT, *UNRELATED) | TYING
    assert {row["verdict"] for row in rows.values()} == {"supported"}
    # They come together in themselves by less than they do compared with unrelated words, which move apart.
    expected = {f"converge/{table}": change["holding"] for table, change in CHANGE.items()}
    expected["conflict-converge/input"] = CHANGE["input"]["conflict"]
    expected |= {
        f"conflict-apart/{table}": CHANGE[table]["conflict"] - CHANGE[table]["holding"] for table in ("output", "tied")
    }
    expected |= {f"unrelated/{table}": change["unrelated"] + DECAY for table, change in CHANGE.items()}
    numbers = {"converge": 30, "conflict-converge": 12, "conflict-apart": 12, "unrelated": 40}
    for claim, value in expected.items():
        assert rows[f"{claim}/seeds"]["n"] == 10
        assert rows[f"{claim}/pairs"]["n"] == numbers[claim.split("/")[0]]
        for over in ("seeds", "pairs"):
            assert rows[f"{claim}/{over}"]["estimate"] == pytest.approx(value, abs=0.08)
    assert rows["tying/validation-loss"]["estimate"] == pytest.approx(COST, abs=0.01)
    assert rows["tying/validation-accuracy"]["estimate"] == pytest.approx(-COST / 10, abs=0.001)
    assert {name for name, row in rows.items() if row["reported"]} == both_rows(*CONVERGE, *UNRELATED)
    assert "as it does for the conflict twins" in rows["tying/validation-loss"]["statement"]


def test_estimates_against_a_loop_over_seeds_and_pairs():
    metrics = run(seeds=6)
    rows = rows_of(metrics)
    kind = {0: "twins", 1: "conflict", 2: "unrelated"}
    change = {"twins": [], "conflict": [], "unrelated": []}  # of the untied output table, [seed][pair]
    for seed in range(6):
        for values in change.values():
            values.append([])
        for pair, place in enumerate(metrics["pair_set"]):
            d = metrics["distance_output"][0, seed, :, pair]
            change[kind[place]][seed].append(np.log((d[-1] + d[-2]) / 2 / d[0]))
    twins, unrelated = (np.median(change[kind], axis=1) for kind in ("twins", "unrelated"))
    by_seed = [max(one, one - other) for one, other in zip(twins, unrelated, strict=True)]
    assert rows["converge/output/seeds"]["estimate"] == pytest.approx(np.median(by_seed), rel=1e-12)
    by_pair = [
        np.mean([change["conflict"][seed][pair] - change["twins"][seed][pair] for seed in range(6)]) for pair in range(12)
    ]
    assert rows["conflict-apart/output/pairs"]["estimate"] == pytest.approx(np.median(by_pair), rel=1e-12)


def test_a_run_that_does_the_opposite_contradicts():
    """Nothing converges but the unrelated pairs; conflict twins are drawn together tied."""
    against = {"holding": 0.2, "conflict": -0.5, "unrelated": -1.0}
    rows = rows_of(run(change=dict.fromkeys(CHANGE, against)))
    verdicts = {name: row["verdict"] for name, row in rows.items() if name not in TYING}
    assert set(verdicts.values()) == {"contradicted"}
    assert rows["conflict-apart/tied/pairs"]["estimate"] == pytest.approx(-0.7, abs=0.06)


@pytest.mark.parametrize(("twins", "unrelated"), [(0.3, 0.8), (-0.5, -1.0)])
def test_twins_that_grow_less_or_shrink_less_than_unrelated_words_do_not_come_together(twins, unrelated):
    change = {"holding": twins, "conflict": twins, "unrelated": unrelated}
    rows = rows_of(run(change=dict.fromkeys(CHANGE, change)))
    for claim in (*CONVERGE, "conflict-converge/input"):
        assert rows[f"{claim}/seeds"]["verdict"] == rows[f"{claim}/pairs"]["verdict"] == "contradicted"


def test_equal_kinds_are_told_apart_no_more_often_than_by_chance():
    """Pairs over which nothing but noise differs: of 200 runs 5 % have p < .05, and both kinds' noise counts."""
    rng, low = np.random.default_rng(0), 0
    metrics = run(seeds=1, sets=(("twins .5", 0.5, 50), ("twins .1", 0.1, 50)), unrelated=100)
    for _ in range(200):
        for name in ("distance_input", "distance_output"):
            metrics[name] = START * np.exp(rng.standard_normal((2, 1, 1, 200)) * (np.arange(RECORDS) > 0)[:, None] * 0.1)
        claims = {claim.id: claim for claim in analysis.claims(metrics, DECAY)}
        low += stats.wilcoxon(claims["conflict-apart/output/pairs"].differences).pvalue < 0.05
    assert stats.binomtest(low, 200, 0.05).pvalue > 1e-3


def test_without_a_set_its_claims_are_not_made():
    metrics = run(sets=BOTH[:1])
    rows = rows_of(metrics)
    assert set(rows) == both_rows(*CONVERGE, *UNRELATED) | TYING
    assert "no planted set violates it" in rows["tying/validation-loss"]["statement"]
    rows = rows_of(run(sets=BOTH[1:]))
    assert set(rows) == both_rows(*CONFLICT, *UNRELATED) | TYING
    # Against 0 where no twins fulfil DH: the distance shrinks, if only a little.
    assert rows["conflict-apart/output/pairs"]["estimate"] == pytest.approx(-0.2, abs=0.05)
    assert rows["conflict-apart/output/pairs"]["verdict"] == "contradicted"
    assert "c - c'" not in rows["conflict-apart/output/pairs"]["statistic"]


def test_sets_of_one_kind_are_pooled():
    sets = (("first", 0.5, 10), ("second", 0.5, 20), ("rare", 0.1, 5), ("rarer", 0.02, 7))
    found, _ = analysis.analyse(run(sets=sets), DECAY)
    numbers = {row["id"]: row["n"] for row in found["claims"]}
    assert numbers["converge/tied/pairs"] == 30
    assert numbers["conflict-apart/tied/pairs"] == 12
    assert [(entry["name"], entry["pairs"], entry["dh"]) for entry in found["sets"]] == [
        ("first", 10, "holds"), ("second", 20, "holds"), ("rare", 5, "fails"), ("rarer", 7, "fails"), ("unrelated", 40, None),
    ]  # fmt: skip


def test_one_seed_decides_over_pairs_alone():
    rows = rows_of(run(seeds=1))
    assert {row["verdict"] for name, row in rows.items() if name.endswith("/pairs")} == {"supported"}
    others = [row for name, row in rows.items() if not name.endswith("/pairs")]
    assert {(row["verdict"], row["n"], row["p"]) for row in others} == {("undecided", 1, None)}


def test_a_seed_that_went_non_finite_is_left_out_with_its_partner():
    metrics = run()
    metrics["finite"][1, 3, 8:] = False
    metrics["distance_input"][1, 3, 8:] = np.nan
    metrics["validation_loss"][1, 3] = np.nan
    found, runs = analysis.analyse(metrics, DECAY)
    kept = [seed for seed in range(7, 17) if seed != 10]
    assert (found["seeds"], found["excluded_seeds"]) == (kept, [10])
    assert found["non_finite"] == [{"arm": "tied", "seed": 10, "step": 800}]
    assert runs["seeds"].tolist() == kept
    assert all(np.isfinite(runs[name]).all() for name in runs if name.startswith(("distance", "validation_loss")))
    assert {row["n"] for row in found["claims"] if row["id"].endswith("/seeds")} == {9}
    json.dumps(plain(found), allow_nan=False)


def test_no_finite_seed_leaves_no_claims():
    metrics = run()
    metrics["finite"][0, :, 5:] = False
    found, runs = analysis.analyse(metrics, DECAY)
    assert (found["seeds"], found["claims"], found["distance_ratio_by_pair"]) == ([], [], [])
    assert text_mlm.drawn(runs, found) == []
    assert text_mlm.tables(found) == {}


def test_final_values_are_means_over_the_last_tenth_of_the_records():
    values = np.arange(2 * 3 * 25.0).reshape(2, 3, 25)
    np.testing.assert_allclose(analysis.final(values), values[..., [23, 24]].mean(-1))
    np.testing.assert_array_equal(analysis.final(values[..., :5]), values[..., 4])


def test_buckets_are_means_over_their_targets():
    """Records of 1 and 3 targets, one of them empty: means weighted by hand."""
    counts = np.zeros((1, 1, 20, 2), int)
    values = np.full((1, 1, 20, 2), np.nan)
    counts[0, 0, 18:, 0], values[0, 0, 18:, 0] = (1, 3), (2.0, 6.0)
    np.testing.assert_array_equal(analysis.final_by_bucket(values, counts), [[[5.0, np.nan]]])


def test_the_body_says_where_pairs_are():
    found, _ = analysis.analyse(run(), DECAY)
    final = found["final"]
    for arm, table, row in (("untied", "input", "input"), ("untied", "output", "output"), ("tied", "output", "tied")):
        for name, kind in (("twins .5", "holding"), ("twins .1", "conflict"), ("unrelated", "unrelated")):
            ratio = final[arm]["distance_ratio"][table][name]
            assert len(ratio) == 10
            np.testing.assert_allclose(ratio, np.exp(CHANGE[row][kind]), rtol=0.12)
            np.testing.assert_allclose(final[arm]["distance_start"][table][name], START, rtol=0.1)
    np.testing.assert_allclose(final["tied"]["validation_loss"], 4 + COST, atol=0.0101)
    assert final["untied"]["validation_loss_by_bucket"]["1-100"] == [3.0] * 10
    assert np.isnan(final["untied"]["validation_loss_by_bucket"]["101-1000"]).all()
    assert final["untied"]["norm"] == {"input": [3.0] * 10, "output": [2.0] * 10}
    pairs = {row["pair"]: row for row in found["distance_ratio_by_pair"]}
    assert len(pairs) == 82
    assert pairs["word35"]["set"] == "twins .1"
    assert pairs["word35"]["tied"] == pytest.approx(np.exp(-0.3), rel=0.1)


@pytest.fixture(scope="module")
def analysed():
    metrics = run(seeds=4)
    found, runs = analysis.analyse(metrics, DECAY)
    return metrics, found, text_mlm.drawn(runs, found)


@pytest.fixture(scope="module")
def pictures(analysed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return [(item.caption, figures.save(item.figure, folder, item.name)) for item in analysed[2]]


def test_figures_show_every_pair_seed_and_bucket(analysed):
    metrics, _, drawn = analysed
    shown = {item.name: item.figure for item in drawn}
    assert list(shown) == [
        "distance", "distance_published", "distance_ratio", "learning", "paired_final", "buckets", "norms", "uses",
    ]  # fmt: skip
    panels = shown["distance"].axes
    assert [one.get_title() for one in panels] == ["untied, input", "untied, output", "tied"]
    assert [len(one.lines) for one in panels] == [82 + 3] * 3
    np.testing.assert_allclose(panels[1].lines[0].get_ydata(), np.median(metrics["distance_output"][0, :, :, 0], axis=0))
    np.testing.assert_allclose(panels[2].lines[0].get_ydata(), np.median(metrics["distance_input"][1, :, :, 0], axis=0))
    assert panels[0].get_ylim()[0] == 0
    labels = [text.get_text() for text in shown["distance"].legends[0].get_texts()]
    assert labels == ["twins .5 (DH holds)", "twins .1 (DH fails)", "unrelated"]

    twins = shown["distance_published"].axes[0].lines[0]
    np.testing.assert_allclose(twins.get_ydata(), metrics["distance_input"][0, 0, :, :30].mean(1))
    top = 1.1 * metrics["distance_input"][0, 0, :, 42:].mean(1).max()
    assert shown["distance_published"].axes[0].get_ylim() == (0, pytest.approx(max(5, top)))

    assert [len(one.lines) for one in shown["learning"].axes] == [2 * (4 + 1)] * 4
    assert len(shown["paired_final"].axes) == 2 + 2 * 3
    assert len(shown["buckets"].axes) == 4
    cost = shown["buckets"].axes[2].lines[0].get_ydata().reshape(4, 3)
    np.testing.assert_allclose(cost[:, 0], np.subtract(*metrics["validation_loss"][::-1, :, -1]))
    assert np.isnan(cost[:, 1]).all()
    assert len(shown["norms"].axes[0].lines) == 3 * (4 + 1)
    strips = shown["distance_ratio"].axes[0].lines
    assert [len(line.get_ydata()) for line in strips[:3]] == [30, 12, 40]


def test_sets_of_a_kind_differ_in_shade():
    shades = figures.shades(figures.BLUE, 3)
    assert shades[0].upper() == figures.BLUE
    assert len(set(shades)) == 3


def test_curves_that_never_move_are_drawn():
    """A tiny run may predict nothing right at any record."""
    metrics = run(seeds=1)
    metrics["validation_accuracy"][:] = 0
    found, runs = analysis.analyse(metrics, DECAY)
    assert not text_mlm.learning(runs).figure.axes[1].lines[0].get_ydata().any()
    assert found["final"]["tied"]["validation_accuracy"] == [0]


def page_of(analysed, pictures, **changed):
    _, found, _ = analysed
    results = {
        **found,
        "data": {
            "splits": {name: {"sentences": 123456, "tokens": 7654321} for name in ("train", "validation")},
            "dropped": 12, "cut": 3456, "fingerprint": "ab12cd",
        },
        "model": {"layers": 3, "parameters": {"untied": 8434048, "tied": 4514432}},
        "steps": 1900,
        "timing": {
            "compile_s": 3.0, "train_s": 90.0, "model_steps_per_s": 42.0,
            "tokens_per_s": 10123.0, "idle_share": 0.013, "padding": 0.018,
        },
        "reach": {"per_coordinate": 1.5, "initial": 0.42},
        **changed,
    }  # fmt: skip
    config = {
        "corpus": ["books/a.txt", "books/b.txt"], "tokenizer": None, "vocab_size": 8192, "batch_size": 32, "layers": 3,
        "width": 128, "heads": 4, "feed_forward": 512, "optimizer": "adamw", "learning_rate": 1e-3, "schedule": "cosine",
        "weight_decay": 0.01, "steps": 1900,
    }  # fmt: skip
    facts = {"command": "python x", "versions": {"jax": "1"}, "python": "3.11", "devices": ["cpu"], "git_commit": "abc"}
    return text_mlm.page(plain(results), config, "steps: 1900\n", facts, pictures)


def test_the_page_says_what_was_run_and_found(analysed, pictures):
    page = page_of(analysed, pictures)
    assert page.count("data:image/png") == len(analysed[2])
    for text in (
        "books/a.txt, books/b.txt", "123,456 (7,654,321 tokens) for validation", "3,456 cut; fingerprint ab12cd",
        "vocabulary 8,192",
        "3 layers of width 128, 4 heads, feed-forward 512; parameters untied 8,434,048, tied 4,514,432",
        "probability 0.5, as likely as its word: DH holds", "probability 0.1, not as likely as its word: DH fails",
        "unrelated: 40 pairs of different words", "10,123 real tokens per second, 1.8% padding, device idle 1.3% of the time",
        "learning rates sum to 1.5", "steps: 1900", "word35",
    ):  # fmt: skip
        assert text in page, text
    for row in analysed[1]["claims"]:
        assert row["id"] in page
    assert page.count("Reported by the paper.") == 12
    assert 'class="note"' not in page
    assert ">-<" in page  # the empty bucket
    assert "nan" not in re.sub(r"data:image/png;base64,[^\"]+", "", page)


def test_the_page_warns(analysed, pictures):
    page = page_of(
        analysed,
        pictures,
        reach={"per_coordinate": 0.2, "initial": 0.42},
        overflow={"untied": 0, "tied": 3},
        excluded_seeds=[9],
        non_finite=[{"arm": "tied", "seed": 9, "step": 800}],
        timing={"compile_s": 0.0, "train_s": 0.0},
    )
    assert "cannot meet in this run" in page
    assert "Up to 3 masked tokens" in page
    assert "tied seed 9 (at step 800)" in page
    assert "tokens per second" not in page


def events(path):
    """Read an event file: length, its checksum, bytes, their checksum; https://www.tensorflow.org/tutorials/load_data/tfrecord."""

    def masked(data):
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    content, found = path.read_bytes(), []
    while content:
        (length, length_crc), content = struct.unpack("<QI", content[:12]), content[12:]
        data, (data_crc,), content = content[:length], struct.unpack("<I", content[length : length + 4]), content[length + 4 :]
        assert (masked(struct.pack("<Q", length)), masked(data)) == (length_crc, data_crc)
        found.append(Event.FromString(data))
    return found


def points(folder):
    """Return step -> {tag: value} as TensorBoard shows a folder: file after file, each start purging what it rewrites."""
    shown = {}
    for path in sorted(folder.iterdir()):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                shown = {step: values for step, values in shown.items() if step < event.step}
            elif event.summary.value:
                shown[event.step] = {value.tag: value.simple_value for value in event.summary.value}
    return shown


def scalars(records):
    """Two quantities `[record, seed, arm]` that tell where they come from."""
    place = np.arange(records)[:, None, None] * 100 + np.arange(2)[:, None] * 10 + np.arange(2)
    return {"validation/loss": place + 0.5, "norm/input": np.where(place == 111, np.nan, -place)}


def test_event_files_hold_every_members_points(tmp_path):
    files = EventFiles(tmp_path / "events", seeds=[3, 8])
    files.write({name: values[:2] for name, values in scalars(3).items()}, np.array([0, 50]))
    folders = {path.name: path for path in (tmp_path / "events").iterdir()}
    assert set(folders) == {"untied-seed-3", "tied-seed-3", "untied-seed-8", "tied-seed-8"}
    assert set(points(folders["tied-seed-8"])) == {0, 50}  # before it is closed, as TensorBoard watches a run
    files.write({name: values[2:] for name, values in scalars(3).items()}, np.array([100]))
    files.close()
    for seed, name in enumerate((3, 8)):
        for arm, arm_name in enumerate(("untied", "tied")):
            found = points(folders[f"{arm_name}-seed-{name}"])
            assert list(found) == [0, 50, 100]
            for record, step in enumerate(found):
                for tag, values in scalars(3).items():
                    np.testing.assert_equal(found[step][tag], values[record, seed, arm])
    assert all("tfevents" in path.name for path in folders["tied-seed-3"].iterdir())


def test_event_files_of_a_resumed_run_replace_what_a_killed_one_wrote_after_its_checkpoint(tmp_path):
    killed = EventFiles(tmp_path, seeds=[0, 1])
    killed.write(scalars(3), np.array([0, 50, 100]))
    killed.close()
    resumed = EventFiles(tmp_path, seeds=[0, 1], first_step=51)  # within the same second
    resumed.write({name: values + 1000 for name, values in scalars(1).items()}, np.array([150]))
    resumed.close()
    found = points(tmp_path / "untied-seed-1")
    assert {step: values["validation/loss"] for step, values in found.items()} == {0: 10.5, 50: 110.5, 150: 1010.5}


def test_event_files_need_no_tensorflow():
    code = "import sys, tiejax.reporting.event_files; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_variants_are_named_alike():
    from tiejax.reporting import event_files

    assert event_files.ARMS == exor.VARIANTS
