//! Compiles the BPF program and generates the Rust side of it.

use libbpf_cargo::SkeletonBuilder;
use std::{env, path::PathBuf, process::Command};

fn main() -> Result<(), String> {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    let var = |name: &str| env::var(name).map_err(|error| format!("{name}: {error}"));
    let decisions = var("DEP_NEARSIDE_CREDIT_INCLUDE")?;
    println!("cargo:rerun-if-changed={decisions}");
    let target = PathBuf::from(var("OUT_DIR")?).join("main.skel.rs");
    let include = [format!("-I{decisions}"), "-Isrc/bpf".to_owned()];
    SkeletonBuilder::new()
        .source("src/bpf/main.bpf.c")
        .clang(clang()?)
        .clang_args(
            ["-mcpu=v3", "-Wall", "-Werror", "-Wno-missing-declarations"]
                .map(str::to_owned)
                .into_iter()
                .chain(include),
        )
        .build_and_generate(target)
        .map_err(|error| format!("the BPF program: {error:#}"))
}

/// CO-RE as used here needs a newer clang than Debian 12's plain `clang`; clang-19 is in Debian 12
/// and 13.
fn clang() -> Result<String, String> {
    if let Ok(chosen) = env::var("BPF_CLANG") {
        return Ok(chosen);
    }
    ["clang-19", "clang"]
        .into_iter()
        .find(|name| {
            Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
        })
        .map(str::to_owned)
        .ok_or_else(|| {
            "no clang-19 and no clang to compile BPF with (scripts/install build)".to_owned()
        })
}
