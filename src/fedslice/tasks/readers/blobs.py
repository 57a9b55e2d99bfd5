"""Two serial forms of federated data, read without their libraries and without unpickling: the
texts in them alone.

msgpack, as FedJAX writes a client: a map from names to arrays.  An array is an extension value:
number 4 holds texts, a pair of shape and flat list; others are passed over.

tf.train.Example, as TensorFlow Federated writes an example: a protocol buffer message of nested
messages.
"""

from collections.abc import Collection

# msgpack's first byte: what follows, and in how many bytes its size (of a number: itself) is
# written.
_WIDE = {
    **{0xC4 + n: ("text", 1 << n) for n in range(3)},
    **{0xC7 + n: ("extension", 1 << n) for n in range(3)},
    **{0xCC + n: ("number", 1 << n) for n in range(4)},
    **{0xD9 + n: ("text", 1 << n) for n in range(3)},
    **{0xDC + n: ("list", 2 << n) for n in range(2)},
    **{0xDE + n: ("map", 2 << n) for n in range(2)},
}


def packed_texts(data: bytes, wanted: Collection[bytes]) -> dict[bytes, list[bytes]]:
    """The wanted arrays of texts in a msgpack map; a LookupError if the data are not of this form.

    >>> # [[2], ["a", "bc"]]
    >>> array = bytes([0x92, 0x91, 2, 0x92, 0xC4, 1]) + b"a" + bytes([0xC4, 2]) + b"bc"
    >>> packed_texts(bytes([0x81, 0xA1]) + b"x" + bytes([0xC7, len(array), 4]) + array, [b"x"])
    {b'x': [b'a', b'bc']}
    """
    size, at = _expect("map", data, 0)
    found = {}
    for _ in range(size):
        length, at = _expect("text", data, at)
        name, at = data[at : at + length], at + length
        length, at = _expect("extension", data, at)
        if name in wanted:
            if data[at] != 4:
                raise LookupError(f"{name.decode()} is no array of texts")
            found[name] = _texts(data, at + 1)
        at += 1 + length  # the first byte is the extension's number
    return found


def _texts(data: bytes, at: int) -> list[bytes]:
    _, at = _expect("list", data, at)  # the pair
    axes, at = _expect("list", data, at)
    for _ in range(axes):
        _, at = _expect("number", data, at)
    size, at = _expect("list", data, at)
    values = []
    for _ in range(size):  # where a value begins, only the one before it tells
        length, at = _expect("text", data, at)
        values.append(data[at : at + length])
        at += length
    return values


def _expect(kind: str, data: bytes, at: int) -> tuple[int, int]:
    """The size of the value of this kind at a place (of a number: itself), and where its content
    begins."""
    code = data[at]
    if code >= 0xC0 and not 0xD4 <= code <= 0xD8:
        found, width = _WIDE.get(code, ("other", 0))
        size, begin = int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
    elif code >= 0xC0:
        found, size, begin = "extension", 1 << (code - 0xD4), at + 1
    elif code >= 0xA0:
        found, size, begin = "text", code & 31, at + 1
    elif code >= 0x80:
        found, size, begin = "map" if code < 0x90 else "list", code & 15, at + 1
    else:
        found, size, begin = "number", code, at + 1
    if found != kind:
        raise LookupError(f"a {found} where a {kind} should be")
    return size, begin


def example_texts(data: bytes, wanted: Collection[bytes]) -> dict[bytes, bytes]:
    """The wanted texts of a tf.train.Example; a LookupError if the data are not of this form.

    An Example has Features (1), these have entries (1) of a name (1) and a Feature (2), this has a
    list of texts (1).

    >>> def message(number, content):
    ...     return bytes([number << 3 | 2, len(content)]) + content
    >>> entry = message(1, b"x") + message(2, message(1, message(1, b"abc")))
    >>> example_texts(message(1, message(1, entry)), [b"x"])
    {b'x': b'abc'}
    """
    entries = (_parts(entry) for entry in _parts(_parts(data)[1][0])[1])
    # what is empty may be left out
    pairs = ((entry.get(1, [b""])[0], entry.get(2, [b""])[0]) for entry in entries)
    return {name: _parts(_parts(value)[1][0])[1][0] for name, value in pairs if name in wanted}


def _parts(data: bytes) -> dict[int, list[bytes]]:
    """The fields of a protocol buffer message that have a length, by number; the others are passed
    over."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        if tag & 7 == 2:
            length, at = _number(data, at)
            if at + length > len(data):
                raise LookupError("a message is cut off")
            found.setdefault(tag >> 3, []).append(data[at : at + length])
            at += length
        else:
            at = _number(data, at)[1] if tag & 7 == 0 else at + {1: 8, 5: 4}[tag & 7]
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first, until a byte below 128."""
    value = shift = 0
    while data[at] >= 0x80:
        if shift > 63:  # no number has more bits, and endless ones would take for ever
            raise LookupError("a number of more than 64 bits")
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1
