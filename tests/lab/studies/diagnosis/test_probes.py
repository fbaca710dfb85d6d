"""What models of EXor are asked: exact contexts, or a sample where there are many."""

import numpy as np

from tiejax.lab.studies.diagnosis import probes
from tiejax.lab.studies.exor.task import VARIANTS, EXor


def test_contexts_of_models_that_see_the_order_are_a_sample():
    few = probes.exor_probes(EXor(7, *VARIANTS["main"]), ordered=True)
    assert few.tokens.shape == (probes.MOST_CONTEXTS, 8)
    assert few.log_ratios[few.pairs["zero pair"][0]].shape == (probes.MOST_CONTEXTS,)


def test_the_truth_of_a_pair_is_that_of_the_task():
    """Where a context asks for a spelling of 0, they stand 1 to 9; where it asks for a 1, neither is to be expected."""
    all_of_them = probes.exor_probes(EXor(4, *VARIANTS["main"]), ordered=False)
    ratios = all_of_them.log_ratios[all_of_them.pairs["zero pair"][0]]
    asking = ~np.isnan(ratios)
    np.testing.assert_allclose(ratios[asking], np.log(9))
    assert 0 < asking.sum() < len(ratios)
