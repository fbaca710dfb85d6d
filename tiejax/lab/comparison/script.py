"""The script of a comparison: what of it results depend on, kept in the run directory, so that none is resumed with another."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tiejax import tying
from tiejax.lab.comparison.arms import Arm
from tiejax.lab.comparison.recipe import Recipe
from tiejax.lab.comparison.settings import SCRIPT
from tiejax.lab.runs.gate import Gate
from tiejax.lab.settings.command_line import BadInput
from tiejax.statistics.claims import Claim
from tiejax.system.visible import cut
from tiejax.training.optimizer import with_own_rates
from tiejax.training.step import products_in

PyTree = Any
ADDRESS = re.compile(r"0x[0-9a-f]+")  # of a function, in the text of a transform or of an arm
# Values of the script that are settings of a run, without those that can be changed on resumption.
GIVEN = ("steps", "rates", "table_factors", "margin")
DRAWING = ("init", "loss")  # functions that may draw random numbers, and do not from the key
STEPS = 100  # for the program of the schedule, if the run chooses its steps


def described(
    recipe: Recipe,
    arms: Sequence[Arm],
    gate: Gate | None,
    claims: Sequence[Claim],
    given: Mapping[str, Any],
    params: PyTree,
) -> dict[str, Any]:
    """Return what results of a comparison depend on beside its settings and data, as JSON values.

    Functions are described by digests of their programs, as jax lowers them, with the arrays that they close over. claims: the
    script's own, of random losses (`checks.own_claims`). params: shapes of the parameters. Raises BadInput if a function gives
    another program each time that it is traced, as with random numbers of numpy.
    """
    batch = recipe.data.shapes
    key, step = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), np.int32)
    optimizer = with_own_rates(recipe.optimizer, recipe.rates, lambda step: 1.0)
    state = jax.eval_shape(optimizer.init, params)
    programs: dict[str, tuple[Any, ...]] = {
        "init": (recipe.init, key),
        "loss": (recipe.loss, params, batch, key),
        "evaluate": (recipe.evaluate, params, batch),
        "optimizer": (optimizer.update, params, state, params),
        "optimizer's first state": (optimizer.init, params),
        "schedule": (lambda step: recipe.schedule(step, given.get("steps") or STEPS), step),
        "ties": (lambda params: tying.view(tying.store(params, recipe.ties), recipe.ties), params),
    }
    if recipe.record_loss is not recipe.evaluate:
        programs["loss of the records"] = recipe.record_loss, params, batch
    programs |= {f"recorders: {name}": (function, params, batch) for name, function in recipe.recorders.items()}
    with products_in(recipe.precision), np.printoptions(threshold=sys.maxsize):
        ties = [ADDRESS.sub("", repr(tie)) for tie in recipe.ties]
        digests = {name: _digest(name, *program) for name, program in programs.items()}
    return {
        "jax": f"{jax.__version__} on {jax.default_backend()}",
        "programs": digests,
        "batch_size": recipe.data.batch_size,
        "max_norm": recipe.max_norm,
        "gate": None if gate is None else gate.bigram,
        "ties": ties,
        "arms": [ADDRESS.sub("", repr(arm)) for arm in arms],
        "claims": [[claim.id, claim.sign, claim.goal, claim.margin, claim.differences.tolist()] for claim in claims],
        "given": {name: given.get(name) for name in GIVEN},
    }


def check(out: Path, now: Mapping[str, Any]) -> None:
    """Raise BadInput if the run in `out` was started by a script that differs from `now` (see `described`).

    Programs are compared only in one version of jax on one kind of device.
    """
    try:
        before = json.loads((out / SCRIPT).read_bytes())
    except (OSError, ValueError):
        return  # a run of an earlier version, or a file that is found to be damaged later
    if changed := differences(before, json.loads(json.dumps(now))):
        raise BadInput(
            f"--resume: {out} was started by another script ({'; '.join(changed)}); restore it, or give another --out"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the arguments in which two descriptions differ."""
    programs = now["programs"] if before.get("jax") == now["jax"] else {}
    known = before["programs"] if programs else {}
    changed = [name for name in dict.fromkeys([*programs, *known]) if known.get(name) != programs.get(name)]
    changed += [name for name in ("ties", "arms") if before.get(name) != now[name] and name not in changed]
    changed += ["claims"] if before["claims"] != now["claims"] else []
    values = {name: (before.get(name), now[name]) for name in ("batch_size", "max_norm", "gate")}
    values |= {name: (before["given"].get(name), value) for name, value in now["given"].items()}
    return changed + [f"{name}: {cut(str(one))} -> {cut(str(other))}" for name, (one, other) in values.items() if one != other]


def _digest(name: str, function: Callable[..., Any], *args: Any) -> str:
    """Return the SHA-256 (hex) of a program with its constants."""
    # Of the lowered program, since the text of a traced one depends on what was traced before. A new function each time, since
    # jax caches what it has traced.
    times = 2 if name in DRAWING else 1
    lowered = [jax.jit(lambda *args: function(*args)).lower(*args).as_text() for _ in range(times)]
    digests = {hashlib.sha256(text.encode()).hexdigest() for text in lowered}
    if len(digests) > 1:
        raise BadInput(
            f"{name}: returns another result each time that it is traced, as with numpy.random; draw from the key, or once "
            "outside the function"
        )
    return digests.pop()
