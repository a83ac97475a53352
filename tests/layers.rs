//! Holds the code to its layers: modules import strictly downward, and only named ones touch the outside.

mod sources;

use std::collections::BTreeMap;
use std::path::PathBuf;

use sources::{files, root};

/// Top-level modules by layer, lowest first. A module may import what stands in a lower layer.
const LAYERS: [&[&str]; 9] = [
    &["record", "error", "clock", "quiet", "config", "metrics", "plant"],
    &["segment", "store", "placement", "ratelimit", "wire"],
    &["cluster", "dataplane"],
    &["peers"],
    &["replicator"],
    &["router", "handoff"],
    &["node"],
    &["bridge"],
    &["php"],
];

/// Imports between modules of one layer that are meant: the store lives in the segment and evicts by placement, settings
/// are limited by the vocabulary, which knows refusals, a line is rate limited by the clock, and a planted fault spoils a
/// copy.
const SIDEWAYS: [(&str, &str); 6] = [
    ("store", "segment"),
    ("store", "placement"),
    ("config", "record"),
    ("record", "error"),
    ("quiet", "clock"),
    ("plant", "record"),
];

/// A source line that counts: not in a comment.
struct Line {
    file: PathBuf,
    number: usize,
    module: String,
    text: String,
}

/// Every line of `src/` outside comments, and outside `mod tests` (which stand at a file's end) unless asked for.
fn lines() -> Vec<Line> {
    let src = root().join("src");
    let mut lines = Vec::new();
    for file in files(&src) {
        let relative = file.strip_prefix(&src).expect("a file in src").to_owned();
        let first = relative.iter().next().expect("a name").to_string_lossy();
        let module = first.trim_end_matches(".rs").to_owned();
        if relative.file_name().is_some_and(|name| name == "tests.rs") || relative.starts_with("tests") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("source");
        for (index, line) in text.lines().enumerate() {
            if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
                break;
            }
            let code = line.split("//").next().unwrap_or_default();
            if !code.trim().is_empty() {
                let (file, module, text) = (relative.clone(), module.clone(), code.to_owned());
                lines.push(Line { file, number: index + 1, module, text });
            }
        }
    }
    assert!(lines.len() > 100, "src/ is not being read");
    lines
}

/// Fails with every line that `wrong` picks.
fn none(what: &str, wrong: impl Fn(&Line) -> bool) {
    let found: Vec<String> = lines()
        .iter()
        .filter(|line| wrong(line))
        .map(|line| format!("{}:{}: {}", line.file.display(), line.number, line.text.trim()))
        .collect();
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Top-level modules that a line names by `crate::`, also as `use crate::{a::X, b}` on one line.
fn imports(text: &str) -> Vec<String> {
    let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        if text[..at].ends_with('$') {
            continue;
        }
        let rest = &text[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                let mut depth = 0;
                let mut start = true;
                for (index, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && !c.is_whitespace() => {
                            found.push(word(&group[index..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
            None => found.push(word(rest)),
        }
    }
    found
}

#[test]
fn imports_are_found() {
    assert_eq!(imports("use crate::store::Store;"), ["store"]);
    assert_eq!(imports("use crate::{store::{Store, Key}, wire, error::X};"), ["store", "wire", "error"]);
    assert_eq!(imports("    let x = crate::node::run(crate::clock::now());"), ["node", "clock"]);
    assert_eq!(imports("use std::fmt;"), Vec::<String>::new());
}

#[test]
fn every_module_has_its_layer() {
    let mut unknown: BTreeMap<String, PathBuf> = BTreeMap::new();
    for line in lines() {
        if line.module != "lib" && layer(&line.module).is_none() {
            unknown.insert(line.module, line.file);
        }
    }
    assert!(unknown.is_empty(), "in no layer: {unknown:?}");
}

#[test]
fn modules_import_strictly_downward() {
    none("imports that do not go down", |line| {
        let Some(own) = layer(&line.module) else { return false };
        imports(&line.text).iter().any(|import| {
            let sideways = SIDEWAYS.contains(&(line.module.as_str(), import.as_str()));
            // Items at the crate's root belong to no layer; there are only modules there.
            *import != line.module && !sideways && layer(import).is_none_or(|theirs| theirs >= own)
        })
    });
}

#[test]
fn only_php_knows_zend() {
    none("ext_php_rs outside php/", |line| line.module != "php" && line.text.contains("ext_php_rs"));
}

#[test]
fn only_cluster_knows_chitchat() {
    none("chitchat outside cluster/", |line| {
        let named = ["use chitchat", "chitchat::"].iter().any(|name| line.text.contains(name));
        line.module != "cluster" && named
    });
}

#[test]
fn only_the_edges_touch_sockets() {
    // Naming the type of a socket that somebody hands over is not touching it; making one is.
    let types = ["TcpListener", "TcpStream", "TcpSocket", "UdpSocket", "UnixListener", "UnixStream", "UnixDatagram"];
    none("sockets outside dataplane/, cluster/transport and bridge/", |line| {
        let edge = ["dataplane", "bridge"].contains(&line.module.as_str())
            || line.file.starts_with("cluster/transport.rs")
            || line.file.starts_with("cluster/transport")
            // The system log is a socket, too.
            || line.file.starts_with("node/log.rs");
        let makes = types.iter().any(|name| line.text.contains(&format!("{name}::")));
        let tokio = line.text.contains("tokio::net") && !line.text.contains("tokio::net::lookup_host");
        !edge && (makes || tokio)
    });
}

#[test]
fn the_pure_layers_never_await() {
    none("waiting in a pure layer", |line| {
        let pure = ["store", "placement", "ratelimit", "wire"].contains(&line.module.as_str());
        pure && (line.text.contains(".await") || line.text.contains("async "))
    });
}

#[test]
fn only_clock_reads_clocks() {
    none("the wall clock outside clock", |line| {
        let wall = ["SystemTime", "clock_gettime", "CLOCK_REALTIME"].iter().any(|name| line.text.contains(name));
        // A robust mutex's timeout is an instant of the kernel's clock.
        line.module != "clock" && !line.file.starts_with("segment/mutex.rs") && wall
    });
    // Timeouts of waits are durations of the process, not deadlines of keys: those are kept below the edges.
    none("std::time::Instant where deadlines are kept", |line| {
        let keeps_deadlines = layer(&line.module).is_some_and(|layer| layer < 2) && line.module != "clock";
        line.text.contains("Instant::now") && keeps_deadlines
    });
}
