"""Check and repair a checkpoint whose flag contradicts its tables: python check_and_repair.py, with pip install 'tiejax[lab]'.

On the command line: `tiejax check FOLDER`, and `tiejax check --fix REPAIRED FOLDER`.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tiejax.checkpoints.check import check_folder
from tiejax.checkpoints.rewrite.fix import fix

# A small checkpoint in the format of the Hugging Face hub. Its configuration says that the two tables are tied, but the file
# has two different ones, as after training with the tie left out and the flag left on.
parent = Path(tempfile.mkdtemp())
folder, repaired = parent / "some-model", parent / "repaired"
folder.mkdir()
random = np.random.default_rng(0)
embedding, head = random.normal(size=(2, 300, 16)).astype(np.float32)
save_file({"model.embed_tokens.weight": embedding, "lm_head.weight": head}, folder / "model.safetensors")
(folder / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True}))

# Compare the flag with the tables. Only headers are read, and the tables where two are stored; nothing is unpickled.
before = check_folder(folder)
print(f"{before.answer}: {before.stored}; {before.says}; {before.reason}")
for consequence in before.follows:
    print(f"    {consequence}")
print(f"    Fix: {before.edit}")

# Write a repaired copy. Values of tensors do not change; a repair that needs a decision is refused with CheckpointError.
for change in fix(folder, repaired):
    print(f"repaired: {change}")

after = check_folder(repaired)
print(f"{after.answer}: {after.stored}; {after.says}")
