"""Runs of four sizes, as plain numbers: importing this costs nothing, so the command line may offer them.

A preset gives the settings in which sizes differ; everything else is the settings' own default.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Value = str | int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One size. `model` is a Llama configuration without its vocabulary, `settings` is by "table.setting"."""

    name: str
    summary: str  # one line for --help
    model: Mapping[str, Value]
    settings: Mapping[str, Value]
    default_data: str | None  # what --data is without the option; None: it must be given


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        # A demonstration: some 50 rounds of three workers on two cores in four minutes.
        Preset(
            name="tiny",
            summary="1M parameters, built-in text: a few minutes on 2 cores",
            model={
                "hidden_size": 128,
                "intermediate_size": 352,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "max_position_embeddings": 512,
            },
            settings={
                "tokenizer.kind": "bpe",
                "tokenizer.vocabulary_size": 2048,
                "data.shards": 16,
                "inner.learning_rate": 2e-3,
                "inner.batch_sequences": 8,
                "inner.sequence_length": 128,
                "inner.warmup_tokens": 100_000,
                "inner.schedule": "wsd",
                "inner.total_tokens": 5_000_000,
                "schedule.inner_steps": 20,
                "evaluation.tokens": 16_384,
                "evaluation.every_rounds": 4,
                "rounds.part_values": 65_536,
            },
            default_data="builtin",
        ),
        # An evening on a few laptops.
        Preset(
            name="small",
            summary="17M parameters, built-in text: an evening on a few laptops",
            model={
                "hidden_size": 384,
                "intermediate_size": 1024,
                "num_hidden_layers": 8,
                "num_attention_heads": 6,
                "num_key_value_heads": 6,
                "max_position_embeddings": 2048,
            },
            settings={
                "tokenizer.kind": "bpe",
                "tokenizer.vocabulary_size": 8192,
                "data.shards": 32,
                "inner.learning_rate": 1e-3,
                "inner.batch_sequences": 16,
                "inner.sequence_length": 512,
                "inner.warmup_tokens": 4_000_000,
                "inner.schedule": "wsd",
                "inner.total_tokens": 350_000_000,  # 20 a parameter
                "schedule.inner_steps": 50,
                "evaluation.tokens": 65_536,
                "evaluation.every_rounds": 4,
                "rounds.part_values": 262_144,
            },
            default_data="builtin",
        ),
        # arXiv 2311.08105, table 1 and section 3: 12 layers of 896, 16 heads of 64, batch 512 × 1024, H = 500,
        # warm-up of 1000 steps, cosine over 88,000 steps, on C4 with a vocabulary of 32,000. Its MLP is not gated: 2432
        # gives the gated one the same parameters. Tokens are the swarm's here: 8 workers' warm-up, the paper's total.
        Preset(
            name="150m",
            summary="150M parameters as in DiLoCo (2311.08105), H = 500; give --data",
            model={
                "hidden_size": 896,
                "intermediate_size": 2432,
                "num_hidden_layers": 12,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "head_dim": 64,
                "max_position_embeddings": 1024,
            },
            settings={
                "tokenizer.kind": "bpe",
                "tokenizer.vocabulary_size": 32_000,
                "data.shards": 1024,
                "inner.learning_rate": 4e-4,
                "inner.beta2": 0.95,
                "inner.weight_decay": 0.1,
                "inner.batch_sequences": 512,
                "inner.sequence_length": 1024,
                "inner.warmup_tokens": 8 * 1000 * 512 * 1024,
                "inner.schedule": "cosine",
                "inner.total_tokens": 8 * 88_000 * 512 * 1024,
                "schedule.inner_steps": 500,
                "evaluation.tokens": 262_144,
                "evaluation.every_rounds": 1,
                "rounds.part_values": 1_048_576,
            },
            default_data=None,
        ),
        # arXiv 2503.09799, table of models, "1.3B": 24 layers of 2048, 32 heads, vocabulary 32,768, sequences of 2048,
        # H = 30, AdamW 0.9/0.99, warm-up of 1000 steps, cosine to 5 % over 20 tokens a parameter. The fits of its
        # section on optimal hyperparameters give, for 8 workers, learning rate 4e-4 and 34 sequences a worker.
        Preset(
            name="1b",
            summary="1.3B parameters as in the scaling laws for DiLoCo (2503.09799), H = 30; give --data",
            model={
                "hidden_size": 2048,
                "intermediate_size": 5440,
                "num_hidden_layers": 24,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "max_position_embeddings": 2048,
            },
            settings={
                "tokenizer.kind": "bpe",
                "tokenizer.vocabulary_size": 32_768,
                "data.shards": 1024,
                "inner.learning_rate": 4e-4,
                "inner.beta2": 0.99,
                "inner.weight_decay": 0.1,
                "inner.batch_sequences": 32,
                "inner.sequence_length": 2048,
                "inner.warmup_tokens": 8 * 1000 * 32 * 2048,
                "inner.schedule": "cosine",
                "inner.total_tokens": 25_400_000_000,
                "schedule.inner_steps": 30,
                "evaluation.tokens": 524_288,
                "evaluation.every_rounds": 4,
                "rounds.part_values": 1_048_576,
            },
            default_data=None,
        ),
    )
}
