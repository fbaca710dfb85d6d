"""Options of a diagnosis."""

from typing import NamedTuple


class Options(NamedTuple):
    """Options of a diagnosis, with their defaults.

    corpus: a text file or a folder of them, in which tokens are counted. tokenizer: a file or a name on the hub, instead of the
    checkpoint's own. input_table, output_table: names of the tensors, instead of those that the architecture gives.
    neighbours: number of nearest neighbours compared per token. sample: number of tokens whose neighbours are compared.
    seed: random seed of the samples.
    """

    corpus: str | None = None
    tokenizer: str | None = None
    input_table: str | None = None
    output_table: str | None = None
    neighbours: int = 10
    sample: int = 2000
    seed: int = 0
