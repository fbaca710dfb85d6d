"""Baselines of `bench.py encoder` and `bench.py text`: the transformers Trainer and plain torch loops. Needs torch.

They train the same masked LM as ours, on the same sentences and vocabulary, with about as many real tokens per step.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from experiments.bench.contender import Train, Work
from tiejax.models.shapes import FEED_FORWARD, TOKEN_TYPES, Shape
from tiejax.text.packing import Stream
from tiejax.text.tokenizer import Vocabulary

MASKED, BY_MASK, BY_RANDOM = 0.15, 0.8, 0.1
WARM = 3  # steps before the clock starts
READ = 256  # steps whose rows the loop reads before it trains
NORM_EPSILON, STD = 1e-12, 0.02


class Job(NamedTuple):
    """The job of a process: train an encoder of a shape on sentences (ids, offsets) with `threads` threads.

    rows, row_length: packed rows per step and their length. sentences: padded sentences per step. tokenizer: path of its file.
    """

    shape: Shape
    ids: np.ndarray
    offsets: np.ndarray
    vocabulary: Vocabulary
    tokenizer: str
    rows: int
    row_length: int
    sentences: int
    threads: int
    learning_rate: float
    weight_decay: float
    warm_up: int = 1
    clip: float | None = None


# The transformers Trainer.


class Sentences(torch.utils.data.Dataset[Any]):
    """The sentences in the form that the library's collator for masked LMs expects, with special tokens marked."""

    def __init__(self, job: Job) -> None:
        self._ids, self._offsets, self._special = job.ids, job.offsets, np.isin(job.ids, job.vocabulary.special)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        part = slice(self._offsets[index], self._offsets[index + 1])
        return {"input_ids": self._ids[part].tolist(), "special_tokens_mask": self._special[part].astype(int).tolist()}


class Counting:
    """A collator that counts the real tokens of its batches."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate, self.tokens = collate, 0

    def __call__(self, examples: list[Any]) -> Any:
        batch = self._collate(examples)
        self.tokens += int(batch["attention_mask"].sum())
        return batch


def train_by_library(job: Job) -> Train:
    """Return the library's Trainer on BertForMaskedLM, with its collator, which pads to the longest sentence of a batch."""
    import transformers

    torch.set_num_threads(job.threads)
    transformers.logging.set_verbosity_error()
    names = {f"{name}_token": job.vocabulary.tokens[getattr(job.vocabulary, name)] for name in ("pad", "cls", "sep", "mask")}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=job.tokenizer, **names)
    collate = Counting(transformers.DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=MASKED))
    arguments = transformers.TrainingArguments(
        per_device_train_batch_size=job.sentences,
        learning_rate=job.learning_rate,
        weight_decay=job.weight_decay,
        warmup_steps=job.warm_up,
        max_grad_norm=job.clip or 0.0,
        max_steps=10**7,
        use_cpu=True,
        # In favour of the Trainer: nothing is saved or printed, and no needless work is done.
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    clock = _clock(transformers.TrainerCallback, collate)
    trainer = transformers.Trainer(bert(job), arguments, collate, Sentences(job), callbacks=[clock])
    trainer.remove_callback(transformers.PrinterCallback)

    def train(seconds: float) -> Work:
        clock.seconds = seconds
        trainer.train()
        return clock.work

    train(0)
    return train


def bert(job: Job) -> Any:
    """Return the library's masked LM of a shape, without dropout like ours."""
    import transformers

    shape = job.shape
    config = transformers.BertConfig(
        vocab_size=job.vocabulary.size,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=FEED_FORWARD * shape.width,
        max_position_embeddings=job.row_length,
        pad_token_id=job.vocabulary.pad,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def _clock(base: type[Any], collate: Counting) -> Any:
    """Return a callback that stops training after warm-up steps and `seconds` more seconds, and holds the `work` done."""

    class Clock(base):
        seconds, work = 0.0, Work(0, 1.0)

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._steps += 1
            if self._steps == WARM:
                self._began, self._before = time.perf_counter(), collate.tokens
            elif self._steps > WARM and (spent := time.perf_counter() - self._began) > self.seconds:
                self.work = Work(collate.tokens - self._before, spent)
                control.should_training_stop = True

    return Clock()


# The plain loop.


class Layer(torch.nn.Module):
    """A layer of BERT: post-LN, exact GELU, one product for query, key and value."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.inner, self.outer = torch.nn.Linear(width, FEED_FORWARD * width), torch.nn.Linear(FEED_FORWARD * width, width)
        self.attention_norm, self.norm = (torch.nn.LayerNorm(width, eps=NORM_EPSILON) for _ in range(2))

    def forward(self, x: Any, bias: Any) -> Any:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = self.attention_norm(x + self.out(attended.transpose(1, 2).flatten(2)))
        return self.norm(x + self.outer(functional.gelu(self.inner(x))))


class MaskedLM(torch.nn.Module):
    """BERT's masked LM on packed rows, with logits at the masked positions only, and tied tables."""

    def __init__(self, shape: Shape, vocabulary: int, positions: int) -> None:
        super().__init__()
        width = shape.width
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.positions, self.types = torch.nn.Embedding(positions, width), torch.nn.Embedding(TOKEN_TYPES, width)
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm, self.head_norm = (torch.nn.LayerNorm(width, eps=NORM_EPSILON) for _ in range(2))
        self.dense, self.bias = torch.nn.Linear(width, width), torch.nn.Parameter(torch.zeros(vocabulary))
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                torch.nn.init.zeros_(parameter) if name.endswith("bias") else torch.nn.init.normal_(parameter, std=STD)

    def forward(self, tokens: Any, segments: Any, positions: Any, slots: Any) -> Any:
        """Return logits `[slots, vocabulary]`; tokens of different `segments` of a row do not attend to each other."""
        bias = without_other_sentences(segments, self.bias.dtype)
        x = self.norm(self.embed(tokens) + self.positions(positions) + self.types.weight[0])
        for layer in self.layers:
            x = layer(x, bias)
        states = self.head_norm(functional.gelu(self.dense(x.flatten(0, 1)[slots])))
        return functional.linear(states, self.embed.weight, self.bias)


class PublishedMaskedLM(torch.nn.Module):
    """The published masked LM: post-LN layers between tied tables, without positions, outer norms or a prediction head."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, shape.width)
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    def forward(self, tokens: Any, segments: Any, positions: Any, slots: Any) -> Any:
        """Return logits `[slots, vocabulary]`; tokens of different `segments` of a row do not attend to each other."""
        x, bias = self.embed(tokens), without_other_sentences(segments, self.embed.weight.dtype)
        for layer in self.layers:
            x = layer(x, bias)
        return functional.linear(x.flatten(0, 1)[slots], self.embed.weight)


def without_other_sentences(segments: Any, dtype: Any) -> Any:
    """Return the attention bias `[rows, 1, length, length]` that keeps sentences from attending to each other."""
    apart = segments[:, None, :, None] != segments[:, None, None, :]
    return torch.zeros(apart.shape, dtype=dtype).masked_fill_(apart, torch.finfo(dtype).min)


class Packed(NamedTuple):
    """The packed rows of a step, with the position of each token in its sentence."""

    tokens: Any
    segments: Any
    positions: Any

    @classmethod
    def of(cls, tokens: np.ndarray, segments: np.ndarray) -> "Packed":
        place = np.arange(segments.shape[1])
        begins = np.diff(segments.astype(int), axis=1, prepend=-1) != 0
        positions = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
        return cls(*(torch.from_numpy(leaf.astype(np.int64)) for leaf in (tokens, segments, positions)))


def masked(rows: Packed, ordinary: Any, vocabulary: Vocabulary) -> tuple[Any, Any, Any]:
    """Return the tokens with masks, the masked positions in the flattened rows, and the original tokens there."""
    draws, by = torch.rand(2, *rows.tokens.shape)
    asked = (draws < MASKED) & ordinary[rows.tokens]
    random = torch.randint(vocabulary.size, rows.tokens.shape)
    instead = torch.where(by < BY_MASK, vocabulary.mask, torch.where(by < BY_MASK + BY_RANDOM, random, rows.tokens))
    slots = asked.flatten().nonzero()[:, 0]
    return torch.where(asked, instead, rows.tokens), slots, rows.tokens.flatten()[slots]


def train_by_loop(job: Job) -> Train:
    """Return a plain loop that trains BERT's masked LM."""
    return loop(job, lambda: MaskedLM(job.shape, job.vocabulary.size, job.row_length))


def train_published_by_loop(job: Job) -> Train:
    """Return a plain loop that trains the text study's published model."""
    return loop(job, lambda: PublishedMaskedLM(job.shape, job.vocabulary.size))


def loop(job: Job, make: Callable[[], torch.nn.Module]) -> Train:
    """Return a plain loop in eager torch on packed rows: fused AdamW, predictions at the masked positions only.

    make: builds the model, whose inputs are tokens, segments, positions and the masked positions of the flattened rows.
    """
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    model = make()
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": decayed, "weight_decay": job.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, job.warm_up)))
    ordinary = torch.from_numpy(~np.isin(np.arange(job.vocabulary.size), job.vocabulary.special))
    batches = read(job, READ)

    def step(rows: Packed) -> int:
        tokens, slots, targets = masked(rows, ordinary, job.vocabulary)
        loss = functional.cross_entropy(model(tokens, rows.segments, rows.positions, slots), targets)
        optimizer.zero_grad()
        loss.backward()
        if job.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
        schedule.step()
        return int((rows.segments > 0).sum())

    def train(seconds: float) -> Work:
        tokens, began = 0, time.perf_counter()
        for number in range(10**9):
            tokens += step(batches[number % len(batches)])
            if (spent := time.perf_counter() - began) > seconds:
                break
        return Work(tokens, spent)

    for rows in batches[:WARM]:
        step(rows)
    return train


def read(job: Job, steps: int) -> list[Packed]:
    """Return the rows of the first steps."""
    stream = Stream(job.ids, job.offsets, job.row_length, job.vocabulary.pad, 0)
    tokens, segments = stream.rows(0, steps * job.rows)
    parts = zip(np.split(tokens, steps), np.split(segments, steps), strict=True)
    return [Packed.of(*part) for part in parts]
