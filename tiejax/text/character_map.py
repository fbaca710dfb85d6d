"""Check of the character map of a SentencePiece tokenizer (`precompiled_charsmap`), which the tokenizers library trusts.

A map is a table of replacements: the size of a trie in bytes, the trie as 32-bit units (a double array, as of darts-clone), and
the replacements in UTF-8, each ended by NUL. The library reserves the memory that the size asks for, and follows the units
without a check, so that a damaged map ends the process with a panic, or takes 8 GiB.

Source: the crate spm_precompiled, https://github.com/huggingface/spm_precompiled.
"""

import base64
import binascii
import json

import numpy as np
from jaxtyping import Bool, Int

FIELD = "precompiled_charsmap"
MOST_UNITS = 2**20  # the map of nmt_nfkc_cf, the largest that SentencePiece comes with, has 60,000
BYTES = np.arange(1, 256)  # of text; 0 ends it
STATES_AT_ONCE = 2**12


def check_maps(content: str) -> None:
    """Raise ValueError if a character map in a tokenizer.json is damaged, wherever it is; other faults are not looked for."""

    def check(pairs: list[tuple[str, object]]) -> None:
        for name, value in pairs:
            if name == FIELD and isinstance(value, str):
                check_map(value)

    try:
        json.loads(content, object_pairs_hook=check)
    except (json.JSONDecodeError, RecursionError):  # the library reports it
        return


def check_map(text: str) -> None:
    """Raise ValueError unless a character map, in base64, can be used for every text."""
    try:
        content = base64.b64decode(text, validate=True)
        size = int.from_bytes(content[:4], "little") // 4
        if len(content) < 4 or not 1 <= size <= min((len(content) - 4) // 4, MOST_UNITS):
            raise ValueError("the size of its trie is wrong")
        units = np.frombuffer(content, "<u4", size, 4).astype(np.int64)
        replacements = content[4 + 4 * size :]
        replacements.decode("utf-8")
        starts = np.frombuffer(replacements + b"\0", np.uint8) & 0xC0 != 0x80  # of characters, and the end
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(f"{FIELD} is damaged: expected base64, with replacements in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{FIELD} is damaged: {error}") from None
    if not _is_closed(units, starts):
        raise ValueError(f"{FIELD} is damaged: its trie points outside of the map")


def _is_closed(units: Int[np.ndarray, " units"], starts: Bool[np.ndarray, "bytes"]) -> bool:
    """Return whether every state that a text can reach leads to units and replacements that exist.

    In a state p, the next byte c is compared with the label of unit p ^ c. If they agree, the next state is p ^ c ^ offset, and
    if that unit has a leaf, the unit at the next state holds the position of a replacement.
    """
    reached = np.zeros(len(units), bool)
    waiting = _offset(units[:1])
    while len(waiting):
        if waiting.max() >= len(units):
            return False
        reached[waiting] = True
        after = [np.empty(0, np.int64)]
        for start in range(0, len(waiting), STATES_AT_ONCE):
            places = waiting[start : start + STATES_AT_ONCE, None] ^ BYTES
            if places.max() >= len(units):
                return False
            found = units[places]
            agree = (found & (1 << 31 | 0xFF)) == BYTES
            following, leaf = places[agree] ^ _offset(found[agree]), (found[agree] >> 8 & 1) == 1
            if following.max(initial=0) >= len(units):
                return False
            positions = units[following[leaf]] & ((1 << 31) - 1)
            if positions.max(initial=0) >= len(starts) or not starts[positions].all():
                return False
            after.append(following)
        following = np.unique(np.concatenate(after))
        waiting = following[~reached[following]]
    return True


def _offset(units: Int[np.ndarray, " units"]) -> Int[np.ndarray, " units"]:
    return (units >> 10) << ((units & (1 << 9)) >> 6)
