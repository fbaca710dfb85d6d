"""The type checker of tests: beartype, with the numeric tower of PEP 484 (an int is a valid float)."""

import beartype

check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
