"""Mutations that know little: of bytes, at the places of numbers where a format tells them, and of JSON-like values."""

import copy
import string

# Where readers go wrong: around powers of two, sign changes, and past what a double or an index can hold.
BOUNDARIES = sorted(
    {0, 1, 2, 3, 4, 5, 7, 31, 33, 40, 48, 63, 100, 1000, 4097, 10**6, 10**9, 2**53 + 1, 2**60, 2**62}
    | {2**bits + step for bits in (3, 5, 6, 7, 8, 15, 16, 31, 32, 40, 63, 64) for step in (-1, 0, 1)}
)
FLOATS = [0.0, -0.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3.4e38, 1.8e308, float("inf"), float("-inf"), float("nan")]
TEXTS = [
    "",
    " ",
    "\0",
    "a",
    "ab",
    "../x",
    "/",
    ".",
    "..",
    "é",
    "\u2028",
    "\U0001f642",
    "{{",
    "%s",
    "\\",
    "null",
    "x" * 3000,
]
KEPT = 1 << 16  # no mutation makes an input longer than this, plus its original length


def mutate_bytes(rng, data, fields=(), donor=b""):
    """`data` after one to four of the operations below.

    Args:
        fields: (place, bytes) of little-endian whole numbers in `data`.
        donor: another input, for splicing.
    """
    made = bytearray(data)
    if fields and rng.random() < 0.6:
        for place, width in rng.choices(fields, k=rng.choice((1, 1, 2))):
            made[place : place + width] = boundary(rng, width, int.from_bytes(made[place : place + width], "little"))
        if rng.random() < 0.7:
            return bytes(made)
    for _ in range(rng.randint(1, 3)):
        rng.choice(OPERATIONS)(rng, made, donor)
    return bytes(made[: len(data) + KEPT])


def boundary(rng, width, old):
    """A boundary value, or a neighbour of the old one, as `width` bytes."""
    value = rng.choice(BOUNDARIES) if rng.random() < 0.7 else old + rng.choice((-8, -2, -1, 1, 2, 8, old))
    return (value % (1 << 8 * width)).to_bytes(width, "little")


def _run(rng, made):
    start = rng.randrange(len(made) + 1)
    return start, start + rng.choice((1, 2, 4, 8, 16, rng.randint(1, 300)))


def _flip(rng, made, donor):
    if made:
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)


def _set(rng, made, donor):
    if made:
        made[rng.randrange(len(made))] = rng.choice(
            (0, 1, 0x22, 0x2C, 0x5B, 0x7B, 0x7F, 0x80, 0xFF, rng.randrange(256))
        )


def _truncate(rng, made, donor):
    del made[rng.randrange(len(made) + 1) :]


def _delete(rng, made, donor):
    start, end = _run(rng, made)
    del made[start:end]


def _repeat(rng, made, donor):
    start, end = _run(rng, made)
    made[start:start] = made[start:end] * rng.choice((1, 1, 2, 30))


def _insert(rng, made, donor):
    start, end = _run(rng, made)
    made[start:start] = rng.randbytes(end - start)


def _splice(rng, made, donor):
    start, end = _run(rng, made)
    place = rng.randrange(len(donor) + 1)
    made[start:end] = donor[place : place + rng.randint(1, 400)]


def _append(rng, made, donor):
    made += rng.choice((b"\0", b"\xff", b" ", b"}")) * rng.choice((1, 7, 64, 5000))


OPERATIONS = (_flip, _flip, _set, _set, _truncate, _delete, _repeat, _insert, _splice, _append)


def mutate_value(rng, root, changes=None):
    """A copy of a structure of dicts, lists and plain values with one to three nodes changed."""
    made = copy.deepcopy(root)
    for _ in range(changes or rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(made)) if isinstance(made, dict | list) else []
        if not places or rng.random() < 0.01:
            made = hostile(rng, made)
        else:
            _change(rng, *rng.choice(places), places)
    return made


def _places(node):
    """(container, key) of every node below `node`."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(pairs):
        yield node, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _change(rng, holder, key, places):
    action = rng.random()
    if action < 0.5:
        holder[key] = hostile(rng, holder[key])
    elif action < 0.65:
        del holder[key]
    elif action < 0.8:
        other, name = rng.choice(places)
        if name in other if isinstance(other, dict) else name < len(other):
            holder[key] = copy.deepcopy(other[name])
    elif isinstance(holder, dict):
        new = rng.choice([name for where, name in places if isinstance(where, dict)])
        holder[new if rng.random() < 0.8 else hostile_text(rng, str(key))] = holder.pop(key)
    else:
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))


def hostile(rng, old=None):
    """Another value: at the edge of the old one's type, or of another type."""
    if rng.random() < 0.3:
        old = rng.choice((1, 1.5, "text", True, None, [], {}))
    if isinstance(old, list):
        return [plain(rng, rng.choice(old) if old else 1) for _ in range(rng.choice((0, 1, 2, 200)))]
    if isinstance(old, dict):
        return {hostile_text(rng, "a"): plain(rng, 1) for _ in range(rng.choice((0, 1, 2, 200)))}
    return plain(rng, old)


def plain(rng, old):
    """Another value that holds no others."""
    if isinstance(old, bool) or old is None:
        return rng.choice((None, not old, 0, 1, "false"))
    if isinstance(old, int):
        return rng.choice((1, 1, -1)) * rng.choice(BOUNDARIES) if rng.random() < 0.7 else old + rng.choice((-1, 1))
    if isinstance(old, float):
        return rng.choice(FLOATS)
    if isinstance(old, str):
        return hostile_text(rng, old)
    return rng.choice(([], {}, [[]]))


def hostile_text(rng, old):
    if not old or rng.random() < 0.5:
        return rng.choice(TEXTS)
    letters = list(old)
    letters[rng.randrange(len(letters))] = rng.choice((*string.printable, "é", "\U0001f642", ""))
    return "".join(letters)


def deep(opening, middle, closing, levels):
    """Nested brackets."""
    return opening * levels + middle + closing * levels
