"""Writes a regtest chain after whose blocks about COINS coins are unspent, for bitcoind to load:

    python3 bench/many-coins.py FILE COINS

Every full block pays an amount to 5,900 outputs and spends each of them, in the same block, to three
outputs of the common kinds, in the shares of the main chain's set. Blocks are valid; nothing is signed,
since what is spent is OP_TRUE. Prints height, coins and the last block's hash. Always the same file.
"""

import hashlib
import random
import struct
import sys

TIME, BITS = 1296688602, 0x207FFFFF
MAGIC = bytes.fromhex("fabfb5da")
GENESIS = bytes.fromhex("0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206")[::-1]
FED = 5900  # transactions with three coins each, in a full block
MATURITY = 100
SUBSIDY = 50 * 10**8
EACH = 3000  # satoshis in an output that is spent at once
TRUE = b"\1\x51"
END = b"\xff" * 4


def sha256d(data):
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def compact(number):
    return bytes([number]) if number < 0xFD else b"\xfd" + struct.pack("<H", number)


def script(noise):
    """One of P2TR, P2WPKH, P2PKH, P2SH, P2WSH, from 34 random bytes."""
    kind, noise = noise[0] * 1000 // 256, noise[1:]
    if kind < 310:
        return b"\x51\x20" + noise[:32]
    if kind < 610:
        return b"\x00\x14" + noise[:20]
    if kind < 890:
        return b"\x76\xa9\x14" + noise[:20] + b"\x88\xac"
    if kind < 980:
        return b"\xa9\x14" + noise[:20] + b"\x87"
    return b"\x00\x20" + noise[:32]


def coinbase(height):
    number = height.to_bytes(height.bit_length() // 8 + 1, "little")
    sig = (bytes([0x50 + height]) if height <= 16 else bytes([len(number)]) + number) + b"\0"
    amount = SUBSIDY if height <= MATURITY else 0
    spends = b"\1" + bytes(32) + END + bytes([len(sig)]) + sig + END
    return b"\1\0\0\0" + spends + b"\1" + struct.pack("<Q", amount) + TRUE + bytes(4)


def spend(txid, vout, outputs):
    return b"\1\0\0\0\1" + txid + struct.pack("<I", vout) + b"\0" + END + outputs + bytes(4)


def merkle_root(ids):
    while len(ids) > 1:
        if len(ids) % 2:
            ids.append(ids[-1])
        ids = [sha256d(ids[i] + ids[i + 1]) for i in range(0, len(ids), 2)]
    return ids[0]


def mined(prev, height, txs):
    root = merkle_root([sha256d(tx) for tx in txs])
    head = struct.pack("<i", 0x20000000) + prev + root + struct.pack("<II", TIME + height, BITS)
    nonce = 0
    while sha256d(head + struct.pack("<I", nonce))[31] >= 0x7F:
        nonce += 1
    block = head + struct.pack("<I", nonce) + compact(len(txs)) + b"".join(txs)
    assert len(block) <= 1_000_000, len(block)
    return block


def fan_out(rng, base):
    """Spends `base` (txid, vout, amount): the transactions, and what is left to spend."""
    txid, vout, amount = base
    left = amount - FED * EACH
    outputs = (struct.pack("<Q", EACH) + TRUE) * FED
    first = spend(txid, vout, compact(FED + 1) + struct.pack("<Q", left) + TRUE + outputs)
    txid, txs = sha256d(first), [first]
    for number in range(FED):
        scripts = [script(rng.randbytes(34)) for _ in range(3)]
        outputs = b"".join(struct.pack("<QB", 700, len(s)) + s for s in scripts)
        txs.append(spend(txid, number + 1, b"\3" + outputs))
    return txs, (txid, 0, left)


def main(path, wanted):
    rng, prev, coins, height, bases = random.Random(1), GENESIS, 0, 0, []
    with open(path, "wb") as out:
        while coins < wanted:
            height += 1
            txs = [coinbase(height)]
            if height <= MATURITY:
                bases.append((sha256d(txs[0]), 0, SUBSIDY))
            else:
                more, left = fan_out(rng, bases.pop(0))
                txs += more
                if left[2] >= FED * EACH:
                    bases.insert(0, left)
                coins += 3 * FED
            block = mined(prev, height, txs)
            prev = sha256d(block[:80])
            out.write(MAGIC + struct.pack("<I", len(block)) + block)
    print(height, coins, prev[::-1].hex())


main(sys.argv[1], int(sys.argv[2]))
