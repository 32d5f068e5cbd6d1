"""The smallest run that init makes: its text, model and settings."""

DOCUMENTS = [f"Document {i} tells of {i * i} things, " + "one after the other. " * (5 + i % 7) for i in range(60)]
MODEL = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "vocab_size": 999,
    "pad_token_id": 3,
    "auto_map": {"AutoModel": "evil.Model"},
}
SMALL = {
    "inner.sequence_length": 32,
    "inner.batch_sequences": 2,
    "inner.warmup_tokens": 100,
    "inner.total_tokens": 10_000,
    "data.shards": 4,
}
