//! Utreexo beside the engines: whether a chain is valid, by proofs and without a set of coins.
