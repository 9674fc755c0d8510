//! Many look-ups as one: each coin is asked for once, by ascending outpoint, and its answer goes to all that want it.

use super::StoreError;
use crate::coin::CoinBytes;
use apus_chain::OutPoint;

/// Asks for each of several coins once, by ascending outpoint, and hands each answer to all that want
/// it.
pub fn each_once<P: Copy>(
    wanted: &mut [(OutPoint, P)],
    ask: impl FnOnce(&[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError>,
    give: impl FnMut(P, Option<CoinBytes>),
) -> Result<(), StoreError> {
    let found = ask(&each_name(wanted))?;
    give_each(wanted, found, give)
}

/// What is to be asked for where all of `wanted` is: each coin once, by ascending outpoint, which is the order
/// of `wanted` afterwards.
pub fn each_name<P: Copy>(wanted: &mut [(OutPoint, P)]) -> Vec<OutPoint> {
    wanted.sort_unstable_by_key(|(outpoint, _)| *outpoint);
    let mut asked: Vec<OutPoint> = wanted.iter().map(|(outpoint, _)| *outpoint).collect();
    asked.dedup();
    asked
}

/// Hands the answers to [`each_name`] of `wanted` to all that want them. Nothing is handed out where there are
/// more or fewer of them.
pub fn give_each<P: Copy>(
    wanted: &[(OutPoint, P)],
    found: Vec<Option<CoinBytes>>,
    mut give: impl FnMut(P, Option<CoinBytes>),
) -> Result<(), StoreError> {
    let names = || wanted.chunk_by(|(a, _), (b, _)| a == b);
    let asked = names().count();
    each_answered(&found, asked)?;
    for (same, coin) in names().zip(found) {
        if let Some(((_, last), others)) = same.split_last() {
            others.iter().for_each(|(_, place)| give(*place, coin.clone()));
            give(*last, coin);
        }
    }
    Ok(())
}

/// Refuses more or fewer answers than look-ups.
pub fn each_answered(found: &[Option<CoinBytes>], asked: usize) -> Result<(), StoreError> {
    match found.len() == asked {
        true => Ok(()),
        false => {
            Err(StoreError::look_up(format!("{} answers came to {asked} look-ups", found.len())))
        }
    }
}
