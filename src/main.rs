//! The `portcullis` program.

use std::process::ExitCode;

/// Measured beside the system's: a sign-in takes less CPU, and idle sessions settle lower.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    portcullis::cli::run().into()
}
