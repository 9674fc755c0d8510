//! Limits and floors for people.

use super::bill::{ChainFloor, Part};
use super::rates::{Limits, Rate};
use crate::table::{Table, grouped, short};

/// Columns of rates and times on all threads.
fn on_all(threads: usize) -> String {
    format!("{threads} threads")
}

fn rates(table: &mut Table, name: String, unit: &str, rate: Rate) {
    table.row([
        name,
        unit.to_owned(),
        short(rate.one_thread),
        short(rate.all_threads),
        format!("{:.2}", rate.scaling()),
    ]);
}

/// What the machine can do: everything but SHA-256, then its kernels.
pub fn limits(limits: &Limits) -> [Table; 2] {
    let all = on_all(limits.threads);
    let columns = ["work", "unit", "1 thread /s", &format!("{all} /s"), "scaling"];
    let mut general = Table::new("Limits of this machine", &columns);
    for (name, unit, rate) in [
        ("copying memory, larger than the caches", "bytes", limits.copy_large),
        ("copying memory, within the second-level cache", "bytes", limits.copy_cached),
        ("reading block files from the page cache", "bytes", limits.read),
        ("de-obfuscation", "bytes", limits.obfuscation),
        ("parsing", "bytes", limits.parse),
        ("MuHash", "coins", limits.muhash),
        ("writing to the page cache", "bytes", limits.write),
    ] {
        rates(&mut general, name.to_owned(), unit, rate);
    }
    let columns = ["shape", "kernel", "1 thread /s", &format!("{all} /s"), "scaling"];
    let mut kernels = Table::new("SHA-256 compressions", &columns);
    for kernel in &limits.kernels {
        for (shape, rate) in [
            ("transactions of a block", kernel.transactions),
            ("transactions of one length", kernel.transactions_of_one_length),
            ("inner nodes of merkle trees", kernel.merkle_nodes),
            ("outpoints", kernel.outpoints),
            ("one long message", kernel.stream),
        ] {
            rates(&mut kernels, shape.to_owned(), &kernel.kernel, rate);
        }
    }
    [general, kernels]
}

/// The floor of a chain, item by item.
pub fn items(floor: &ChainFloor, limits: &Limits) -> Table {
    let all = on_all(limits.threads);
    let columns =
        ["item", "part", "amount", "unit", "1 thread /s", "1 thread ms", &format!("{all} ms")];
    let title = format!("Floor of a chain of {} bytes", grouped(floor.work.bytes));
    let mut table = Table::new(title, &columns);
    for item in &floor.items {
        let part = match item.part {
            Part::Blocks => "blocks",
            Part::AggregateSha256 | Part::AggregateMuhash => "proof",
            Part::Set => "set",
            Part::SetMuhash => "if asked for",
        };
        table.row([
            item.item.clone(),
            part.to_owned(),
            grouped(item.amount),
            item.unit.clone(),
            short(item.rate.one_thread),
            format!("{:.1}", item.times.one_thread_ms),
            format!("{:.1}", item.times.all_threads_ms),
        ]);
    }
    table
}

/// The sums, by the kind of proof.
pub fn sums(floor: &ChainFloor, limits: &Limits) -> Table {
    let all = on_all(limits.threads);
    let columns = [
        "proof",
        "validation, 1 thread ms",
        &format!("{all} ms"),
        "with the set, 1 thread ms",
        &format!("{all} ms"),
    ];
    let mut table = Table::new("Floor, summed up", &columns);
    for of in &floor.floors {
        let times = [
            of.validation.one_thread_ms,
            of.validation.all_threads_ms,
            of.run.one_thread_ms,
            of.run.all_threads_ms,
        ];
        let times = times.map(|ms| format!("{ms:.1}"));
        table.row(std::iter::once(of.aggregate.clone()).chain(times));
    }
    table
}
