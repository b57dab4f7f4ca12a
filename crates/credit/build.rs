//! Compiles the scheduler's decisions for the host, and passes the header's folder to dependants.

fn main() {
    println!("cargo:rerun-if-changed=src/credit.h");
    println!("cargo:rerun-if-changed=src/trial.h");
    println!("cargo:rerun-if-changed=src/credit.c");
    println!("cargo:include={}/src", std::env!("CARGO_MANIFEST_DIR"));
    cc::Build::new()
        .file("src/credit.c")
        .std("c11")
        .warnings(true)
        .extra_warnings(true)
        .compile("nearside_credit");
}
