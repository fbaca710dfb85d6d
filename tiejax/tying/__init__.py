"""What a tie is: `store`/`view` for leaves shared once, `symmetric` for ties switched at run time, `layers` for owners."""

from tiejax.tying.layers import check_owner as check_owner
from tiejax.tying.layers import first_uses as first_uses
from tiejax.tying.layers import independent as independent
from tiejax.tying.layers import sends_gradient as sends_gradient
from tiejax.tying.store import equal_leaves as equal_leaves
from tiejax.tying.store import store as store
from tiejax.tying.store import view as view
from tiejax.tying.symmetric import clip_by_global_norm as clip_by_global_norm
from tiejax.tying.symmetric import copy_to_targets as copy_to_targets
from tiejax.tying.symmetric import global_norm as global_norm
from tiejax.tying.symmetric import symmetrise as symmetrise
from tiejax.tying.tie import Tie as Tie
from tiejax.tying.tie import TieError as TieError
from tiejax.tying.tie import resolve as resolve
