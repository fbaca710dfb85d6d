"""Options of a diagnosis."""

from typing import NamedTuple


class Options(NamedTuple):
    """What a diagnosis looks at besides the checkpoint itself.

    corpus: a text file or a folder of them, in which tokens are counted. tokenizer: a file or a name on the hub, instead of the
    checkpoint's own. input_table, output_table: names of tensors, where the family's usual names do not find them. neighbours:
    nearest neighbours compared per token. sample: tokens whose neighbours are compared. seed: of the samples.
    """

    corpus: str | None = None
    tokenizer: str | None = None
    input_table: str | None = None
    output_table: str | None = None
    neighbours: int = 10
    sample: int = 2000
    seed: int = 0
