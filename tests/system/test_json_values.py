"""Conversion to values that JSON can represent."""

import json

import numpy as np

from tiejax.system.json_values import plain


def test_plain_replaces_numpy_scalars_and_nonfinite_numbers():
    value = {"a": np.float32(0.5), "b": [np.nan, np.inf, np.int64(3)], "c": (np.bool_(True), None), 4: "x"}
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == {
        "a": 0.5,
        "b": [None, None, 3],
        "c": [True, None],
        "4": "x",
    }
