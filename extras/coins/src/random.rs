//! Names that no two writers and no two flushes share.

use apus_engine::utxo::StoreError;

/// Bytes that the system draws, for the store at a place.
pub(crate) fn random(place: &str) -> Result<[u8; 16], StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Io {
        place: place.to_owned(),
        error: format!("the system gives no random numbers: {error}"),
    })?;
    Ok(bytes)
}
