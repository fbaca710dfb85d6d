"""Reports of untie curves: their opening sentences and tables."""

import numpy as np
import pytest

from tiejax.lab.reporting import untie_curve
from tiejax.lab.reporting.finding import opening
from tiejax.statistics.untie_arms import BASELINES, Arms
from tiejax.statistics.untie_curve import Finals, analyse
from tiejax.system.json_values import plain


@pytest.fixture(scope="module")
def results():
    """Two policies: under `copy` untied models end lower than every baseline by far, under `zero` as the tied ones do."""
    rng, arms = np.random.default_rng(0), Arms.of([20, 40], 60, ["copy", "zero"])
    mean = np.where(arms.policy == "copy", 0.2, 0.8)
    loss = mean[:, None] + 0.01 * rng.normal(size=(len(arms.step), 16))
    diverged = np.zeros(loss.shape, bool)
    return plain(analyse(arms, Finals(loss, diverged, loss < 0.5, {"accuracy": 1 - loss}), "exact cross-entropy", 0.05))


def test_finding_has_a_paragraph_for_each_baseline_with_decided_claims_first(results):
    *paragraphs, counts = untie_curve.finding(results)
    rows = {row["id"]: row for row in results["claims"]}
    assert len(paragraphs) == len(BASELINES)
    for words, base in zip(paragraphs, BASELINES, strict=True):
        copy, zero = (rows[f"untying-helps/{base}/{curve}"] for curve in ("copy", "zero-output"))
        assert (copy["verdict"], zero["verdict"]) == ("supported", "undecided")
        assert words == f"{opening(copy)} {opening(zero)}"
        assert BASELINES[base] in words
    assert counts == "Of 6 claims, 3 supported, 3 undecided."


def test_tables_show_means_bands_and_shares_without_p(results):
    tables = untie_curve.tables(results)
    assert list(tables) == [
        "Never and always tied: means over seeds",
        "copy: means over seeds, with simultaneous 95 % bands",
        "zero, new output: means over seeds, with simultaneous 95 % bands",
    ]
    columns, rows = tables["copy: means over seeds, with simultaneous 95 % bands"]
    assert columns[:4] == ["untie step", "loss", "95 % band", "solved"]
    point, against = results["curves"][0]["points"][1], results["curves"][0]["against"]["tied"][0]
    step, loss, band, solved, difference, *_ = rows[1]
    assert (step, solved) == ("20", "16 of 16 (100 %)")
    assert float(loss) == pytest.approx(np.mean(point["loss"]), abs=1e-4)
    assert [float(end) for end in band.split(" to ")] == pytest.approx(point["band"], abs=1e-4)
    assert float(difference.split()[0]) == pytest.approx(against["estimate"], abs=1e-4)
    assert rows[0][4:] == rows[-1][4:] == ["", "", ""]
    assert not any(" p " in cell for row in rows for cell in row)


def test_bigrams_are_in_the_opening_and_in_the_table(results):
    """Of text; a gate that fails is named first."""
    gate = {"bigram": 4.1, "losses": {"untied": 4.0, "tied": 3.9}, "failed": "No claim is tested."}
    of_text = results | {"bigram": {"left": 4.5, "right": 4.4, "both": 4.1}, "gate": gate}
    first, *answers, compared, counts = untie_curve.finding(of_text)
    assert (first, [*answers, counts]) == ("No claim is tested.", untie_curve.finding(results))
    assert "4.500 nats from the token on its left, 4.400 from that on its right, and 4.100 from both" in compared
    assert compared.endswith("mean final losses: untied models 4.000, tied models 3.900.")
    title = "Never and always tied: means over seeds"
    (_, rows), (_, before) = untie_curve.tables(of_text)[title], untie_curve.tables(results)[title]
    assert rows == [*before, ["bigram model", "4.1000", "-", "-"]]


def test_exploratory_claims_of_a_curve_are_not_tested():
    arms = Arms.of([20], 60, ["copy"])
    finals = Finals(np.random.default_rng(0).normal(size=(4, 12)), np.zeros((4, 12), bool), None, {})
    rows = analyse(arms, finals, "validation loss", 0.01, "exploratory")["claims"]
    assert {(row["verdict"], row["p"]) for row in rows} == {("exploratory", None)}


def test_one_seed_has_no_bands():
    arms = Arms.of([20], 60, ["copy"])
    finals = Finals(np.ones((4, 1)), np.zeros((4, 1), bool), None, {})
    found = plain(analyse(arms, finals, "validation loss", 0.01))
    _, rows = untie_curve.tables(found)["copy: means over seeds, with simultaneous 95 % bands"]
    assert rows[1] == ["20", "1.0000", "- to -", "+0.0000", "+0.0000", "+0.0000"]


def test_nothing_to_show_without_untie_steps():
    assert untie_curve.tables({"curves": []}) == {}
