//! What ends a run early: Ctrl-C, or a polite kill.

use crate::failure::{Failure, INTERRUPTED};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Set by Ctrl-C and by a polite kill; a second one ends the program at once.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let exit = i32::from(INTERRUPTED);
        let register = || {
            signal_hook::flag::register_conditional_shutdown(signal, exit, Arc::clone(&interrupt))?;
            signal_hook::flag::register(signal, Arc::clone(&interrupt))
        };
        register().map_err(|error| Failure::usage(format!("cannot watch for signals: {error}")))?;
    }
    Ok(interrupt)
}
