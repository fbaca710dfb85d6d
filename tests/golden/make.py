"""Write the golden files with torch: `python tests/golden/make.py`. Needed only when a case or its inputs change.

A file holds only the results of torch. The tests draw weights, tokens and batches again (`published`); `weights_sum` shows
whether the weights are the same.
"""

import math
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import published  # noqa: E402
import torch_reference  # noqa: E402


def answers(name: str) -> dict[str, np.ndarray]:
    """Return torch's logits for a case in both precisions and, if it is published, the results of tied and untied training."""
    case = published.CASES[name]
    model, tokens = published.build(case), published.random_tokens(8)
    params = published.weights(model)
    single = torch_reference.build(case, published.weights(model, np.float32))
    result = {
        "weights_sum": np.float64(math.fsum(np.concatenate([leaf.ravel() for leaf in published.by_path(params).values()]))),
        "logits_float32": torch_reference.logits_everywhere(single, tokens),
        "logits_float64": torch_reference.logits_everywhere(torch_reference.build(case, params), tokens),
    }
    if name in published.PUBLISHED:
        steps, protocol = published.TRAINING[name]
        for tied in ("untied", "tied"):
            reference = torch_reference.build(case, params, tied == "tied")
            result[f"losses_{tied}"] = torch_reference.train(reference, published.visits(steps), protocol)
            result[f"final_logits_{tied}"] = torch_reference.logits_everywhere(reference, tokens)
    return result


if __name__ == "__main__":
    for name in published.CASES:
        np.savez(HERE / f"{name}.npz", **answers(name))
        print(name)
