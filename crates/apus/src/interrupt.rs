//! What ends a run early: Ctrl-C, or a polite kill.

use crate::failure::{Failure, INTERRUPTED};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What signals set, once they are watched.
static WATCHED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Set by Ctrl-C and by a polite kill; a second one ends the program at once.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
    // Watched twice, the first one would count as the second.
    if let Some(interrupt) = WATCHED.get() {
        return Ok(Arc::clone(interrupt));
    }
    let interrupt = Arc::clone(WATCHED.get_or_init(Arc::default));
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

/// Whether Ctrl-C or a polite kill came, also after the run was over.
pub(crate) fn came() -> bool {
    WATCHED.get().is_some_and(|interrupt| interrupt.load(Ordering::Relaxed))
}
