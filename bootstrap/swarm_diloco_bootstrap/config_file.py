"""What run.toml says about itself: every setting with what it is, its unit and why it is as it is."""

from collections.abc import Mapping

HEADING = """\
This file is the contract of one swarm-diloco run. Its bytes, comments included, are hashed, and the hash is the run's
id: every peer trains by exactly this text. Editing it makes another run, which no peer of this one will meet.
To start that other run:  swarm-diloco init --config THIS_FILE NEW_FOLDER"""

COMMENTS: Mapping[str, Mapping[str, str]] = {
    "run": {
        "": "What the run is, whose it is, and who may take part.",
        "format": "Version of this file's form. A client that reads another one refuses and says so.",
        "name": "Shown to everybody who joins; 1 to 64 characters of any script.",
        "purpose": "What the run is for, in one line: volunteers read it before they give their machine.",
        "contact": "Where the operator answers: a mail address or a page.",
        "code_licence": "Licence of the program that trains, as an SPDX name.",
        "operator_key": "The operator's public Ed25519 key, hexadecimal. It signed the genesis; the invite names it.",
        "bootstrap_peers": "Peer ids of the operator's entries when the run began: the members of commit 0.",
        "minimum_client_version": "An older client is refused and told to update.",
    },
    "model": {
        "": "The model. Its configuration is the run's file model/config.json, θ_0 is the operator's first snapshot.",
        "architecture": "The family, for information.",
        "parameters": "Trainable parameters, a tied one counted once: what a round exchanges.",
        "source": '"config": θ_0 was drawn at random; "weights": it continues a trained model.',
        "licence": "Licence of the trained model, as an SPDX name.",
    },
    "tokenizer": {
        "": "How text becomes tokens. Its files are the run's files under tokenizer/.",
        "kind": '"bpe": trained on the run\'s text at init; "byte": a token a byte; "model": the given model\'s own.',
        "vocabulary_size": "Tokens it can give, the end-of-document token counted.",
        "eos_token": "The token that stands between two documents, so that the model learns where a text ends.",
    },
    "data": {
        "": "The text to train on.",
        "source": '"files": shards served by the bootstrap peer, by hash; "hub", "url": workers read from there.',
        "format": 'Form of the text: "text", "jsonl", "parquet" or "arrow". The run\'s own files are jsonl.',
        "text_field": "The field of jsonl, parquet and arrow rows that holds the text.",
        "dataset": "hub: owner/name; url: the address, {00000..00127} in it standing for a row of files.",
        "revision": "hub: the commit that all workers read, since a branch would give them unlike text.",
        "configuration": "hub: the data set's configuration, if it has several.",
        "split": "hub: the split to train on.",
        "evaluation_split": "hub: the split for the held-out set; nothing: the run's file data/held-out.jsonl.",
        "shards": "Pieces of the text: a worker is given whole ones. Many more than there are workers is best.",
        "licence": "Licence of the text; who joins is shown it.",
    },
    "inner": {
        "": "What each worker does between two rounds: AdamW on its own shards.",
        "learning_rate": "Peak of the schedule below.",
        "beta1": "Decay of AdamW's first moment, a step.",
        "beta2": "Decay of AdamW's second moment, a step. 0.95 forgets faster than 0.999: right for short runs.",
        "weight_decay": "AdamW's decoupled decay, times the learning rate, a step.",
        "clip": "Largest L2 norm of a step's gradient; a longer one is scaled down to it.",
        "batch_sequences": "Sequences in one step of one worker. What does not fit into memory is accumulated.",
        "sequence_length": "Tokens in one sequence; documents are packed into them without padding.",
        "warmup_tokens": "Tokens of the whole swarm over which the learning rate rises to its peak.",
        "schedule": '"wsd": warm-up, stable, decay over the last part; "cosine": falls all along.',
        "total_tokens": "Tokens of the whole swarm after which the learning rate has fallen to its last value.",
        "decay_fraction": "wsd: part of total_tokens over which the learning rate falls.",
        "final_fraction": "Last learning rate as a part of the peak.",
    },
    "outer": {
        "": "What a round does with the average Δ of the workers: m ← μ m + Δ, θ ← θ − lr (Δ + μ m).",
        "learning_rate": "lr. Best values grow with the number of workers: about 0.4 for one, 0.8 to 1 for eight.",
        "momentum": "μ at its largest.",
        "momentum_ramp": "μ = min(momentum, n / (n + ramp)) after n results: short runs gain as long ones do.",
    },
    "schedule": {
        "": "When a round is due.",
        "inner_steps": "H: inner steps between two rounds. Twice H is half the traffic for a little more loss.",
        "fragments": "P: pieces that are exchanged in turn. 1 is all at once; more come with a later version.",
        "pattern": "How layers are dealt to fragments; without meaning at one fragment.",
        "overlap_steps": "τ: steps trained while a round is under way. 0 waits for its result.",
        "mixing": "α: share of the worker's own parameters kept when it takes a result. 0 takes the result.",
        "pace": '"time": due when the median worker has done H steps, each does what it can; "steps": H each, exactly.',
    },
    "codec": {
        "": "How values are written on the wire: float32 4 bytes a value, float16 2, int8 about 1, e3m0 about half.",
        "upload": "What workers send: errors average out between them, so 4 bits do.",
        "download": "The averaged result that all apply: its error is common to all, so it is finer.",
        "block_values": "int8, e3m0: values that share one float32 scale.",
    },
    "rounds": {
        "": "Bounds of the round protocol; the rest of it is the same for every run.",
        "minimum_workers": "A round waits until so many workers take part.",
        "group_limit": "Members of one round. A peer past it is refused, and told so.",
        "snapshot_interval": "Rounds between two snapshots, at most 8: what a replay can cost.",
        "part_values": "Values in one part: what a reducer averages, and what is sent, checked and fetched as one.",
        "maximum_norm": "A contribution with a larger L2 norm is refused.",
        "maximum_weight": "A contribution that claims more tokens is refused.",
        "opening_seconds": "A coordinator waits so long for expected members while it does not know how late they are.",
        "patience_floor_seconds": "Once it knows, it waits three times the usual lateness, but at least so long.",
        "deadline_seconds": "From asking a coordinator to its plan; past it the next candidate is asked.",
        "deadline_floor_seconds": "From the plan to the decision: three times the usual, but at least so long.",
        "deadline_ceiling_seconds": "And at most so long, however often it was raised.",
        "degraded_seconds": "Overdue for so long (or 2 periods), a round goes on without the majority of its council.",
        "alone_seconds": "And a worker whom nobody answers goes on alone after so long (or 8 periods).",
        "greeting_seconds": "At most so long between two words with peers met before, in which heads are compared.",
        "heartbeat_seconds": "Between two signs of life on an open stream.",
        "silence_seconds": "A peer that has been silent for so long counts as dead.",
    },
    "evaluation": {
        "": "How the swarm's own parameters are measured: by one member in turn, and the value goes into the log.",
        "sets": "Names of the held-out sets.",
        "tokens": "Of each set, at most so many tokens.",
        "every_rounds": "Rounds between two measurements.",
    },
    "file": {
        "": "Files that members fetch from each other: path under files/, blake3 of the content, length in bytes.",
    },
}
