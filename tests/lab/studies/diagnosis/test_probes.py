"""Probes of EXor models: exact contexts, or a sample of many."""

import numpy as np
import pytest

from tiejax.lab.studies.diagnosis import open_run
from tiejax.lab.studies.exor.task import VARIANTS, EXor


@pytest.mark.slow
def test_many_contexts_are_sampled():
    few = open_run.exor_probes(EXor(7, *VARIANTS["main"]), ordered=True)
    assert few.tokens.shape == (open_run.MOST_CONTEXTS, 8)
    assert few.log_ratios[few.pairs["zero pair"][0]].shape == (open_run.MOST_CONTEXTS,)


def test_log_ratios_are_those_of_the_task():
    """In contexts that ask for a 0, its two spellings have odds of 9 to 1; in contexts that ask for a 1, neither can occur."""
    every = open_run.exor_probes(EXor(4, *VARIANTS["main"]), ordered=False)
    ratios = every.log_ratios[every.pairs["zero pair"][0]]
    asking = ~np.isnan(ratios)
    np.testing.assert_allclose(ratios[asking], np.log(9))
    assert 0 < asking.sum() < len(ratios)
