"""Tests of arrays by episode, computed by hand."""

import numpy as np
from layer_runs import AGENT_MAPS, findings_of, run


def test_episodes_average_their_actions_and_keep_their_last_map():
    findings, runs, _ = findings_of(run())
    agent = findings["agents"]["agent"]
    assert agent["episode"] == [1, 2]
    assert agent["reward"] == [[-5, -3], [-6, -2]]
    np.testing.assert_array_equal(agent["q_loss"], [[2, 0.5], [1, np.nan]])
    np.testing.assert_allclose(agent["distinct"], [[5 / 3, 3], [1, 1]])
    assert runs["episode_owner"].tolist() == [[[maps[2], maps[3]] for maps in AGENT_MAPS]]
    assert runs["episode_epsilon"].tolist() == [1, 0.95]
