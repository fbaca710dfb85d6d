"""Small models, created and saved by the transformers library. Needs torch."""

import torch
import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

# Families that the library ties by the flag: not RemBERT, which it never ties, nor T5, which it always ties.
TIED_BY_FLAG = [
    *("bert", "roberta", "xlm-roberta", "albert", "electra", "deberta-v2", "modernbert"),
    *("gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "falcon", "llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text"),
    *("qwen2", "qwen3", "phi", "olmo2", "smollm3", "cohere2", "mamba"),
]

SMALL = {
    "vocab_size": 40,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "input_embedding_size", "word_embed_proj_dim"), 16),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "output_embedding_size"), 24
    ),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_key_value_heads",), 2),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    "attention_types": [[["global"], 1]],
    "num_local_experts": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def saved(name, tied, folder):
    """Save a random model of a family, tied or untied, in a folder; return the folder."""
    usual = transformers.AutoConfig.for_model(name)
    small = {
        key: value for key, value in SMALL.items() if hasattr(usual, key) and (name, key) != ("falcon", "head_dim")
    }  # which Falcon computes itself
    config = transformers.AutoConfig.for_model(name, **small, tie_word_embeddings=tied)
    kinds = (MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING)
    kind = next(kind[type(config)] for kind in kinds if type(config) in kind)
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    return folder
