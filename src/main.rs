//! The `portcullis` program.

fn main() {}
