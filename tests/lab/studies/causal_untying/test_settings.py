"""Defaults with and without a corpus, and settings that are refused."""

from fractions import Fraction

import pytest

from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.causal_untying.settings import Settings


def test_a_corpus_makes_a_study():
    found = Settings(corpus=["wikitext"]).resolved()
    assert (found.number_of_seeds, found.hours, found.steps, found.width, found.control_seeds) == (10, 3.6, None, 64, 0)
    assert found.forks == [Fraction(1, 6), Fraction(1, 3), Fraction(2, 3)]
    assert found.ends == [Fraction(1, 8), Fraction(1, 4), Fraction(1, 2)]
    assert (found.gate, found.table_factors) == (0.1, [1, 2, 4, 8])


def test_without_a_corpus_it_is_a_demonstration():
    found = Settings().resolved()
    assert (found.number_of_seeds, found.hours, found.steps, found.width, found.control_seeds) == (8, None, 300, 64, 0)


def test_what_is_given_is_kept():
    found = Settings(corpus=["x"], steps=3000, seeds=3, width=32, control_seeds=0).resolved()
    assert (found.steps, found.hours, found.seeds, found.width, found.control_seeds) == (3000, None, 3, 32, 0)
    assert Settings(hours=1.0).resolved().steps is None


def test_resolved_settings_stay_as_they_are():
    found = Settings(corpus=["x"]).resolved()
    assert found.resolved() == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"untie_at": ["1/6", "0.9"]},
            "--untie_at: expected fractions up to 0.8, after which the learning rate falls, got 9/10",
        ),
        ({"untie_at": ["1"]}, "--untie_at: expected fractions between 0 and 1, such as [1/6,1/3,2/3], got 1"),
        ({"untie_at": ["half"]}, "--untie_at: expected fractions between 0 and 1, such as [1/6,1/3,2/3], got half"),
        ({"untie_at": ["1/2", ".5"]}, "--untie_at: expected distinct fractions, got ['1/2', '.5']"),
        ({"lengths": ["2"]}, "--lengths: expected fractions between 0 and 1, such as [1/6,1/3,2/3], got 2"),
        ({"table_factors": [2, 1]}, "--table_factors: expected numbers > 0 in ascending order, got [2, 1]"),
        (
            {"tied_factor": 2.0},
            "--tied_factor: needs --tied_rate and --untied_rate; otherwise it is chosen among --table_factors",
        ),
        ({"planted": True, "lengths": ["1/2"]}, "--lengths: not available with --planted; leave it out"),
        ({"rates": [1e-3, 2e-3]}, "--rates: expected at least three numbers between 0 and 1 in ascending order"),
        ({"tied_rate": 1e-3}, "--tied_rate and --untied_rate: give both or neither"),
        ({"steps": 300, "hours": 1.0}, "--steps and --hours: give one of them"),
        ({"steps": 10}, "--steps: expected at least 60, got 10"),
        ({"steps": 310}, "--steps: expected a multiple of 150, so that models untie at steps of --record_every"),
        ({"seeds": [5, 1001]}, "--seeds: 1001 is one of the seeds that choose the learning rates; use others"),
        ({"planted": True, "untie_at": []}, "--untie_at: with --planted, expected at least one fraction, got []"),
        ({"planted": True, "wide": True}, "--wide: not available with --planted; leave it out"),
        ({"trigger": 0.1}, "--trigger: expected a cosine, between -1 and 1, with --explore true, got 0.1"),
        ({"natural_pairs": 5, "context": 16}, "--natural_pairs: needs a --context of at least 24, got 16"),
        ({"natural_pairs": 5, "tied_rate": 0.1, "untied_rate": 0.1, "seeds": [1001]}, "--seeds: 1001 is one of the seeds that"),
        ({"heads": 5}, "--heads: 5 heads do not divide the width 64"),
        ({"test": ["t"]}, "--validation: required with --test"),
    ],
)
def test_bad_settings_name_the_option(given, message):
    with pytest.raises(BadInput) as refused:
        Settings(**given).resolved()
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("every", "unit"), [(1, 60), (25, 1500), (50, 3000), (100, 6000)])
def test_every_fork_is_at_a_step_of_records(every, unit):
    settings = Settings(corpus=["x"], record_every=every, validate_every=every).resolved()
    assert settings.step_unit == unit
    forks = [arm.fork for arm in settings.arms if arm.fork is not None]
    assert all(fork * unit % every == 0 for fork in forks)
    smaller = [number for number in range(1, unit) if all(fork * number % every == 0 for fork in forks)]
    assert smaller == []


def test_distances_on_planted_text_are_recorded_at_a_third():
    settings = Settings(corpus=["x"], planted=True, untie_at=["1/2"], record_every=50, validate_every=50).resolved()
    assert settings.step_unit == 300  # 100 without them
