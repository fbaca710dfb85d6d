"""Data: `exor` (strings, split, distributions; plain numpy), `exor_batches` (spelling and masking on the device)."""
