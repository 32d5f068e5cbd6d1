"""Text from a model: what `generate` prints and the demonstration shows."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from swarm_diloco.errors import ModelError

TOP_TOKENS = 50  # sampled from: the tail of a small model is noise


def continue_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    *,
    num_tokens: int,
    temperature: float,
    seed: int,
) -> str:
    """`prompt` and up to `num_tokens` tokens after it, fewer where the model ends the document.

    The prompt is the beginning of a document; of one that is too long for the model's positions the end is taken.
    Temperature 0 takes the most likely token each time. Raises ModelError if the model has not so many positions.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    room = None if positions is None else positions - num_tokens
    if room is not None and room < 1:
        raise ModelError(f"the model has {positions} positions: ask for fewer than {positions} tokens")
    ids = [tokenizer.eos_token_id, *tokenizer.encode(prompt, add_special_tokens=False)]  # EOS ends the document before
    context = torch.tensor([ids if room is None else ids[-room:]])
    warmth = {"temperature": temperature, "top_k": TOP_TOKENS} if temperature > 0 else {}
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        generated = model.generate(
            context,
            attention_mask=torch.ones_like(context),
            max_new_tokens=num_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
            use_cache=True,
            do_sample=temperature > 0,
            **warmth,
        )
    return prompt + str(tokenizer.decode(generated[0, context.shape[1] :], skip_special_tokens=True))
