"""Prints the numbers that `orders_are_pinned` expects, from docs/order.md alone. Needs Python 3.8."""

import bisect
import itertools
import math
import struct

MASK = 2**64 - 1


def chacha8(key, stream):
    """The 64-bit words of the ChaCha8 key stream."""

    def quarter(s, a, b, c, d):
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & 0xFFFFFFFF
            s[z] ^= s[x]
            s[z] = (s[z] << turn | s[z] >> (32 - turn)) & 0xFFFFFFFF

    words = struct.unpack("<8I", struct.pack("<4Q", *key))
    for block in itertools.count():
        start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *words]
        start += [block & 0xFFFFFFFF, block >> 32, stream & 0xFFFFFFFF, stream >> 32]
        s = list(start)
        for _ in range(4):
            for i in range(4):
                quarter(s, i, i + 4, i + 8, i + 12)
            for i in range(4):
                quarter(s, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12)
        out = [(x + y) & 0xFFFFFFFF for x, y in zip(s, start)]
        yield from (out[i] | out[i + 1] << 32 for i in range(0, 16, 2))


def draws(seed, epoch, position, stream):
    return chacha8((seed, epoch, position, MASK), stream)


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def shuffled(n, seed, epoch, position):
    key = list(itertools.islice(draws(seed, epoch, 0, 1), 10))
    columns = max(16, math.isqrt(n - 1) + 1)
    rows = max(16, -(-n // columns))
    while True:
        row, column = divmod(position, columns)
        for i in range(0, 10, 2):
            column = (column + (mix(row ^ key[i]) * columns >> 64)) % columns
            row = (row + (mix(column ^ key[i + 1]) * rows >> 64)) % rows
        position = row * columns + column
        if position < n:
            return position


def replaced(weights, seed, epoch, position):
    shares = [w / max(weights) for w in weights]
    sums = list(itertools.accumulate(shares))
    cumulated = [int(s / sums[-1] * 2**62) for s in sums]
    # A power of two, so that one word is enough: none is rejected.
    ball = next(draws(seed, epoch, position, 2)) * 2**62 >> 64
    return bisect.bisect_right(cumulated, ball)


def race(weights, count, seed, epoch):
    arrivals = []
    for i, (w, word) in enumerate(zip(weights, draws(seed, epoch, 0, 3))):
        if w > 0:
            arrivals.append((-math.log(1 - (word >> 11) / 2**53) / (w / max(weights)), i))
    return [i for _, i in sorted(arrivals)[:count]]


first = range(8)
print([shuffled(8, 42, 0, p) for p in first])
print([shuffled(1_281_167, 42, 0, p) for p in first])
print([shuffled(1_281_167, 42, 1, p) for p in first])
every_third = range(0, 100, 3)
print([every_third[shuffled(len(every_third), 42, 1, p)] for p in first])
roots = [math.sqrt(i) for i in range(100)]
print([replaced(roots, 42, 1, p) for p in first])
print(race(roots, 8, 42, 1))
