"""How annotations are checked while tests run: as by beartype, where a whole number will do for a number (PEP 484)."""

import beartype

check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
