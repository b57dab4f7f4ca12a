//! Compiles the one variable that Rust cannot state.

fn main() {
    println!("cargo:rerun-if-changed=src/thread.c");
    cc::Build::new().file("src/thread.c").pic(true).compile("nearside_thread");
}
