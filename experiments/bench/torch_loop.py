"""EXor's protocol as a plain torch loop: one untied model, with a Dataset and a DataLoader. Needs torch."""

import random
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data

from tiejax.lab.studies.exor import task
from tiejax.lab.studies.exor.settings import Settings


class Model(torch.nn.Module):
    """The transformer of resolved settings, with separate input and output tables."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        model, vocabulary = settings.model_settings, settings.tasks[0].vocabulary
        self.embed = torch.nn.Embedding(vocabulary, model["width"])
        self.head = torch.nn.Embedding(vocabulary, model["width"])
        layer = torch.nn.TransformerEncoderLayer(
            model["width"],
            model["heads"],
            model["feed_forward"],
            dropout=model["dropout"],
            activation=model["activation"],
            batch_first=True,
        )
        self.encoder = torch.nn.TransformerEncoder(layer, model["layers"], enable_nested_tensor=False)

    def forward(self, tokens: Any) -> Any:
        return self.encoder(self.embed(tokens)) @ self.head.weight.T


class Visits(torch.utils.data.Dataset[Any]):
    """The training strings of a task. Every access draws new spellings of the bits and masks one of them."""

    def __init__(self, exor: task.EXor) -> None:
        self._exor, self._rows = exor, task.split(exor.bits)["train"].tolist()
        # For bits 0 and 1: their symbols, and the probabilities of the symbols.
        self._spellings = (exor.spellings["zero"], exor.zero), (exor.spellings["one"], exor.one)
        self._rng = random.Random(0)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        exor, rng, bits = self._exor, self._rng, self._rows[index]
        spelled = [rng.choices(*self._spellings[bit])[0] for bit in bits]
        position = rng.randrange(len(bits))
        target = spelled[position]
        spelled[position] = exor.mask
        return torch.tensor([*spelled, exor.odd if sum(bits) % 2 else exor.even]), position, target


def torch_loop(settings: Settings) -> Callable[[float], float]:
    """Return a function that trains one untied model for about `seconds` seconds and returns its steps per second.

    settings: resolved settings of the study.
    """
    torch.manual_seed(0)
    assert settings.learning_rate is not None
    visits = Visits(settings.tasks[0])
    loader = torch.utils.data.DataLoader(visits, batch_size=len(visits), shuffle=True)
    model = Model(settings)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, eps=settings.eps, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.half_period, settings.minimum_learning_rate)

    def step() -> None:
        for tokens, positions, targets in loader:
            logits = model(tokens)[torch.arange(len(tokens)), positions]
            loss = torch.nn.functional.cross_entropy(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    for _ in range(20):
        step()

    def rate(seconds: float) -> float:
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            step()
            steps += 1
        return steps / (time.perf_counter() - began)

    return rate
