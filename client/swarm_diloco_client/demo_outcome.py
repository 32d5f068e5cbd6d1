"""After the demonstration's training: what its peers left on disk is measured, exported, and tried out."""

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from swarm_diloco_client.demo import BOOTSTRAP, Demo
from swarm_diloco_client.demo_report import DemoResult
from swarm_diloco_client.export import export, outer_model
from swarm_diloco_client.generation import continue_text
from swarm_diloco_client.held_out import held_out_blocks, measure_model
from swarm_diloco_client.observer import ObservedRun, open_run, stored_state

PROMPT = "The economy of"
SAMPLE_TOKENS = 60
SAMPLE_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    result: DemoResult
    model: Path  # the exported folder
    sample: str


async def outcome_of(demo: Demo) -> DemoOutcome:
    """Export the bootstrap peer's newest state to the demonstration's folder model/ and measure it.

    Raises SwarmDilocoError if what lies on disk is not a run's.
    """
    run = open_run(demo.operator)
    folder = demo.settings.folder / "model"
    state = await run.state()
    await export(run, state, folder)
    exported, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    first, _ = await outer_model(run, stored_state(run.folder, run.rules, run.log, last_round=0))
    last, own_tokenizer = await outer_model(run, state)
    blocks = await held_out_blocks(run, own_tokenizer, run.manifest.evaluation.sets[0])
    end = measure_model(last, blocks)
    totals = run.log.totals
    result = DemoResult(
        parameters=run.manifest.model.parameters,
        batch_tokens=run.manifest.inner.batch_tokens,
        num_workers=demo.settings.num_workers,
        rounds=run.log.head.round,
        tokens=totals.tokens,
        tokens_by_name={
            name: totals.tokens_by_peer[status.peer] for name, status in demo.statuses.items() if name != BOOTSTRAP
        },
        loss_start=measure_model(first, blocks).loss,
        loss_end=end.loss,
        unigram_entropy=end.unigram_entropy,
        loss_exported=measure_model(exported, blocks).loss,
        statuses=demo.statuses,
        live=demo.live,
        agreement=demo.agreement,
        stored_matches=_stored_matches(run, demo),
        killed=demo.killed,
        killed_at_round=demo.killed_at_round,
        joined=demo.joined,
        left_behind=demo.left_behind,
    )
    sample = continue_text(
        exported, tokenizer, PROMPT, num_tokens=SAMPLE_TOKENS, temperature=SAMPLE_TEMPERATURE, seed=0
    )
    return DemoOutcome(result, folder, sample)


def _stored_matches(run: ObservedRun, demo: Demo) -> bool:
    """Whether the log, replayed from disk to the newest round that all live peers named, gives the state they named."""
    common = demo.agreement.newest_common(demo.live)
    if common is None:
        return False
    state = stored_state(run.folder, run.rules, run.log, last_round=common)
    return (state.digest.hex(), state.state_hash.hex()) == demo.agreement.seen[common][BOOTSTRAP]
