"""Tools for checkpoints in the format of the Hugging Face hub.

hub        reading: families, tables by rows, tokenizers; `hub.weights.load` and `save` convert to models of tiejax
rewrite    modified copies: `rewrite.tie.tie`, `rewrite.untie.untie`, `rewrite.factorise.factorise`
check      whether the configuration agrees with the stored tables: `check.check_folder`
diagnose   how similar the two tables are: `diagnose.checkpoint.diagnose_checkpoint`, `diagnose.verdict.verdict`
"""
