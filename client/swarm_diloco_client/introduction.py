"""What a volunteer is told before anything is trained: whose run it is, what it is for, and what it will cost."""

from swarm_diloco.manifest import Manifest

STATE_BYTES = 8  # a parameter: θ and the outer momentum, float32


def introduction(manifest: Manifest, *, missing_bytes: int, has_state: bool) -> list[str]:
    """Lines of plain text: what the operator wrote is made showable. `missing_bytes` is of the run's files."""
    run, model, data = manifest.run, manifest.model, manifest.data
    state_bytes = 0 if has_state else STATE_BYTES * model.parameters
    facts = [
        ("run", f"{run.name}  {manifest.run_id.hex()[:16]}"),
        ("purpose", run.purpose or "the operator gives none"),
        ("operator", run.contact or "the operator gives no contact"),
        ("model", f"{model.architecture}, {model.parameters:,} parameters{_licence(model.licence)}"),
        ("text", f"{data.dataset or 'of the run itself'}, {data.shards} shards{_licence(data.licence)}"),
        ("code", f"licence {run.code_licence}"),
        ("to fetch", f"{(missing_bytes + state_bytes) / 1e6:,.1f} MB, and text as it is needed"),
    ]
    return [f"{name:9} {shown(text)}" for name, text in facts]


def _licence(licence: str) -> str:
    return f", licence {licence}" if licence else ""


def shown(text: str) -> str:
    """One line without control and direction characters."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
