"""Baseline of `bench.py decoder`: the transformers library's model with tied layers in a plain torch loop. Needs torch."""

import time
from typing import Any, Literal, NamedTuple

import torch

from experiments.bench.contender import Train, Work

WARM = 2  # steps before the clock starts


class Job(NamedTuple):
    """The job of a process: train the library's model on `threads` threads. Layer i is the module of layer owner[i]."""

    architecture: Literal["gpt2", "bert"]
    owner: tuple[int, ...]
    width: int
    heads: int
    vocabulary: int
    context: int
    batch_size: int
    threads: int
    learning_rate: float
    weight_decay: float
    clip: float


def build(job: Job) -> Any:
    """Return the library's causal language model, without dropout like ours. Tied layers are the same module several times."""
    import transformers

    if job.architecture == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=job.vocabulary,
            n_positions=job.context,
            n_embd=job.width,
            n_layer=len(job.owner),
            n_head=job.heads,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
        model = transformers.GPT2LMHeadModel(config)
        model.transformer.h = torch.nn.ModuleList(model.transformer.h[owner] for owner in job.owner)
        return model
    bert = transformers.BertConfig(
        vocab_size=job.vocabulary,
        hidden_size=job.width,
        num_hidden_layers=len(job.owner),
        num_attention_heads=job.heads,
        intermediate_size=4 * job.width,
        max_position_embeddings=job.context,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        is_decoder=True,
        use_cache=False,
    )
    decoder = transformers.BertLMHeadModel(bert)
    decoder.bert.encoder.layer = torch.nn.ModuleList(decoder.bert.encoder.layer[owner] for owner in job.owner)
    return decoder


def train_by_library(job: Job) -> Train:
    """Return a plain loop in eager torch: fused AdamW, clipped gradients, and the same batch of random tokens in every step."""
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    model = build(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.learning_rate, weight_decay=job.weight_decay, fused=True)
    tokens = torch.randint(job.vocabulary, (job.batch_size, job.context))

    def step() -> None:
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()

    def train(seconds: float) -> Work:
        steps, began, spent = 0, time.perf_counter(), 0.0
        while spent <= seconds:
            step()
            steps, spent = steps + 1, time.perf_counter() - began
        return Work(steps * tokens.numel(), spent)

    for _ in range(WARM):
        step()
    return train
