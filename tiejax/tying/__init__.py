"""A tie: `store`/`view` for leaves shared once, `symmetric` for switched ones, `untie` to end one, `layers` for owners."""

from tiejax.tying.layers import check_owner as check_owner
from tiejax.tying.layers import first_uses as first_uses
from tiejax.tying.layers import independent as independent
from tiejax.tying.layers import sends_gradient as sends_gradient
from tiejax.tying.store import equal_leaves as equal_leaves
from tiejax.tying.store import store as store
from tiejax.tying.store import view as view
from tiejax.tying.symmetric import clip_by_global_norm as clip_by_global_norm
from tiejax.tying.symmetric import clip_scale as clip_scale
from tiejax.tying.symmetric import copy_to_targets as copy_to_targets
from tiejax.tying.symmetric import global_norm as global_norm
from tiejax.tying.symmetric import symmetrise as symmetrise
from tiejax.tying.tie import Tie as Tie
from tiejax.tying.tie import TieError as TieError
from tiejax.tying.tie import resolve as resolve
from tiejax.tying.untie import Keep as Keep
from tiejax.tying.untie import New as New
from tiejax.tying.untie import Policy as Policy
from tiejax.tying.untie import collect as collect
from tiejax.tying.untie import gradients_by_use as gradients_by_use
from tiejax.tying.untie import join as join
from tiejax.tying.untie import only_tied as only_tied
from tiejax.tying.untie import part as part
from tiejax.tying.untie import retie as retie
from tiejax.tying.untie import untie as untie
