"""The command `tiejax share RUN`."""

import dataclasses
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite.rewrite import check_absent, within
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.resume import reopened
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.studies.layer_tying.settings import STUDY
from tiejax.lab.studies.layer_tying.settings import Settings as RunSettings
from tiejax.lab.studies.layer_tying.variants import MOST
from tiejax.system.files import replace
from tiejax.system.visible import cut
from tiejax.tying.errors import TieError
from tiejax.tying.layer_maps import MAPS, WITH_DISTINCT, check_maps, static_map
from tiejax.tying.owner import Owner


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model to convert, the layers that will share weights, and the file to write.

    Args:
        run: directory of a layer-tying run
        model: the model to convert, METHOD-seedS, whose layers have separate weights: a file in models/, without .safetensors
        map: which layers will share weights: the name of a fixed map (all-one, sequence, cycle, cycle-reversed, sandwich,
            middle-cycle, reversed-halves or untied), or a list of the layer whose weights each layer will use, such as
            [0, 0, 2, 2]
        distinct: number of distinct layers in sequence, cycle, cycle-reversed and middle-cycle (default: that of the run)
        lora_rank: rank of the low-rank adaptation of each layer; with 0, layers that share weights are equal, and with full
            every layer stays what it was, up to rounding
        out: file to write (.safetensors), which must not exist (default: only print the report)
    """

    run: str | None = None
    model: str = "untied-seed0"
    map: list[int] | str | None = None
    distinct: int | None = None
    lora_rank: int | Literal["full"] = 0
    out: str | None = None

    def check(self) -> None:
        """Raise BadInput, naming the option, for a value that cannot be used with any run."""
        if not self.run:
            raise BadInput(f"run: name the directory of a layer-tying run: {command_line.program()} RUN")
        if self.map is None or (isinstance(self.map, str) and self.map not in MAPS):
            got = "" if self.map is None else f", got '{cut(self.map)}'"
            raise BadInput(f"--map: expected one of {', '.join(MAPS)} or a list of layers such as [0, 0, 2, 2]{got}")
        if self.distinct is not None and self.map not in WITH_DISTINCT:
            raise BadInput(
                f"--distinct: --map determines the distinct layers, except for {', '.join(WITH_DISTINCT)}; leave out --distinct"
            )
        if self.lora_rank != "full" and not 0 <= self.lora_rank <= MOST:
            raise BadInput(f"--lora_rank: expected full or an integer from 0 to {MOST:,}, got {cut(self.lora_rank)}")
        if self.out == "":
            raise BadInput("--out: expected the path of a file, got ''")

    def owner(self, of_run: RunSettings) -> Owner:
        """Return the owner vector of the converted model; raises BadInput if the map does not fit the layers of the run."""
        assert of_run.distinct is not None
        try:
            if isinstance(self.map, list):
                return check_maps({"map": self.map}, of_run.layers)["map"]
            return static_map(self.map or "", of_run.layers, of_run.distinct if self.distinct is None else self.distinct)
        except TieError as error:
            raise BadInput(f"--{error}") from None


COMMAND = CommandLine(
    description="Convert a trained model of a layer-tying run, whose layers have separate weights, to shared layers with "
    "low-rank adaptations. Layers share the mean of their weights; the adaptation of each layer is the truncated singular "
    "value decomposition of its difference from that mean. Prints the bytes of the weights, the share of the differences that "
    "is left out, and the loss on the test blocks of the run, before and after. The run is not changed. Without --out, only "
    "the report is printed.",
    example="Example: PROGRAM runs/layer_tying --map sequence --distinct 3 --lora_rank 4 --out shared.safetensors.",
    switches={},
    positional=("run",),
)


def main(argv: Sequence[str]) -> int:
    """Convert a model; return the exit status. Raises BadInput, or OSError if a file cannot be read or written."""
    settings, _ = command_line.parse(Settings, COMMAND, argv)
    settings.check()
    folder = Path(settings.run or "").expanduser()
    out = None if settings.out is None else Path(settings.out)
    listed, of_run = reopened(folder, {STUDY.name: STUDY}, "converted")
    of_run = dataclasses.replace(of_run, out=str(folder))  # the run may have been moved
    owner = settings.owner(of_run)
    if out is not None:
        _check_new(out, folder)
    environment.check()
    from tiejax.lab.studies.layer_tying import convert as conversion

    console = Console()
    before = conversion.read_untied(folder, listed, settings.model)
    text = conversion.text_of_run(of_run, listed, console)
    converted = conversion.convert(before, owner, None if settings.lora_rank == "full" else settings.lora_rank)
    form = of_run.form(settings.model.rpartition("-seed")[0])
    # A residual scale of the run's variant is 1 as long as no layers share weights, and stays 1.
    forms = {"before": form, "after": form._replace(lora_rank=converted.rank, residual_scale=0.0)}
    weights = {"before": before, "after": converted.weights}
    losses = {name: conversion.loss_on_test(of_run, text, forms[name], weights[name]) for name in forms}
    for line in conversion.report(before, converted, losses):
        console.say(line)
    if conversion.bytes_of(converted.weights) >= conversion.bytes_of(before):
        console.warn("the converted model takes no fewer bytes than the original")
    if out is not None:
        _check_new(out, folder)  # another process may have created it meanwhile
        replace(out, conversion.file_of(converted.weights))
        console.result(f"converted: {settings.out}")
    return 0


def _check_new(out: Path, run: Path) -> None:
    """Raise BadInput or OSError unless a new file can be written at `out`, outside the run directory."""
    try:
        check_absent(out, "file")
    except CheckpointError as error:
        raise BadInput(f"--out {error}") from None
    if within(out, run):
        raise BadInput(f"--out {out}: lies in {run}, which is only read; name a file outside it")
    if not out.parent.is_dir():
        raise BadInput(f"--out {out}: {out.parent} is not a directory; create it or name another file")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out.parent))
