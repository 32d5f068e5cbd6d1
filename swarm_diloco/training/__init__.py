"""Inner steps: model, data, and the trainer process. Synchronous."""
