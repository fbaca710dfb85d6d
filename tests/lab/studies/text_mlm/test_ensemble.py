"""Unrolled members (as on a CPU) and vmapped members (as on an accelerator) of the text study agree."""

import dataclasses
import re

import numpy as np
import pytest

from tiejax import training
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.text_mlm import text
from tiejax.lab.studies.text_mlm.ensemble import build_ensemble
from tiejax.lab.studies.text_mlm.settings import Settings

SMALL = {"layers": 2, "width": 16, "heads": 2, "feed_forward": 32, "max_length": 32, "vocab_size": 400, "batch_size": 12}


@pytest.fixture(scope="module")
def ensemble(data):
    """An ensemble of two seeds, tied and untied, with recorded training loss and tables."""
    places = {"corpus": [str(data / "corpus")], "data_dir": str(data / "prepared")}
    settings = Settings(**SMALL, **places, seeds=2, steps=12, learning_rate=0.003).resolved()
    whole = build_ensemble(settings, *text.prepare(settings, Console(quiet=True)))

    def measure(params, masked, seed_key, step):
        tables = {"input": params["embed"]["embedding"], "output": params["head"]["embedding"]}
        return {"loss": whole.loss(params, masked, None)[0], **tables}

    return dataclasses.replace(whole, recorders={"record": training.Recorder(4, measure)})


@pytest.mark.slow
def test_unrolled_and_vmapped_members_agree(ensemble):
    apart, together = (
        training.train(dataclasses.replace(ensemble, members=members), [0, 3]).records["record"]
        for members in (training.Unrolled(), training.Vmapped())
    )
    assert apart["loss"].shape == (4, 2, 2)
    for name in ("loss", "input", "output"):
        np.testing.assert_allclose(together[name], apart[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert (np.abs(np.diff(apart["loss"], axis=0)) > 1e-3).all()


@pytest.mark.slow
def test_vmapped_members_share_their_matrix_products(ensemble):
    """Four members, two arms of two seeds: unrolled they have four times as many matrix products as vmapped."""
    counts = {}
    for members in (training.Unrolled(), training.Vmapped()):
        traced = training.trace_ensemble(
            dataclasses.replace(ensemble, members=members, recorders={}), [0, 3], ensemble.start([0, 3])
        )
        counts[type(members)] = len(re.findall("dot_general", traced.lower(lowering_platforms=("cuda",)).as_text()))
    assert counts[training.Unrolled] == 4 * counts[training.Vmapped]
