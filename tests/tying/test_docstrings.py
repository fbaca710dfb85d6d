"""The examples in docstrings of public functions run and print what they claim."""

import doctest

import pytest

from tiejax import tying

EXAMPLES = [
    "Tie",
    "store",
    "view",
    "untie",
    "retie",
    "find_ties",
    "tie_between",
    "ties_of_keys",
    "ties_to_json",
    "ties_from_json",
    "Ties",
    "count_parameters",
    "load_full",
    "resize_state",
    "untie_parameters",
]
TRANSFORMS = ["Cast", "Slice"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    names = {"Tie": tying.Tie, "store": tying.store, "resolve": tying.resolve, name: getattr(tying, name)}
    test = doctest.DocTestParser().get_doctest(getattr(tying, name).__doc__, names, name, None, None)
    assert test.examples
    report: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=report.append).failed == 0, "".join(report)
