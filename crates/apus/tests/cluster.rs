//! Runs that machines share, from outside: a real NATS server, a coordinator and workers as processes on this machine.
//!
//! Whatever is killed and started again, a run comes to the very set of a node, or says what is wrong as a run on one
//! machine does.

mod altered;
mod audits;
mod chaos;
mod closing;
mod faults;
mod full;
mod joined;
mod kept;
mod leader;
mod lines;
mod lost;
mod nats_cluster;
mod netns;
mod nodes;
mod outsider;
mod outsiders;
#[cfg(feature = "utreexo")]
mod proven;
mod read_once;
mod refusals;
mod roots;
#[cfg(feature = "s3")]
mod s3;
mod same_set;
mod versitygw;
mod world;
