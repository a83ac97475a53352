//! Holds `docs/OPERATIONS.md` to the source: every line that the module can log, and every warning it gives PHP, is
//! explained there, and nothing is explained that the source no longer says.

mod sources;

use sources::{files, root};

/// What begins a message for operators: the node's log, php's start-up warnings, refusals of operations.
const SAY: [&str; 7] = [
    "tracing::error!(",
    "tracing::warn!(",
    "tracing::info!(",
    "warn_at_startup(&format!(",
    "warn(&format!(",
    "let reason = format!(",
    "#[error(",
];

/// Whose `#[error]` texts are warnings of PHP functions, and whose `reason` is logged.
const REFUSALS: &str = "error.rs";
const REASONS: [&str; 2] = ["node/life.rs", "bridge/starter.rs"];

/// Parts of messages shorter than this prove nothing.
const TELLING: usize = 8;

struct Message {
    place: String,
    /// The texts between what is filled in.
    constants: Vec<String>,
}

/// String literals in the brackets that have just been opened where `text` begins, each with its depth: 1 is in no
/// brackets within them.
fn literals(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut depth, mut chars) = (Vec::new(), 1, text.chars());
    while let Some(c) = chars.next() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '"' => {
                let mut literal = String::new();
                while let Some(c) = chars.next() {
                    match c {
                        '"' => break,
                        // A line that goes on: the source's indentation is not part of it.
                        '\\' => match chars.next() {
                            Some('\n') => {
                                let rest = chars.as_str().trim_start();
                                chars = rest.chars();
                            }
                            Some(escaped) => literal.push(escaped),
                            None => break,
                        },
                        c => literal.push(c),
                    }
                }
                found.push((depth, literal));
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// The parts of a format string that stand in every line made of it.
fn constants(format: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut inside = false;
    for c in format.chars() {
        match c {
            '{' => {
                inside = true;
                parts.push(String::new());
            }
            '}' => inside = false,
            c if !inside => parts.last_mut().expect("one at least").push(c),
            _ => {}
        }
    }
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

fn messages() -> Vec<Message> {
    let src = root().join("src");
    let mut messages = Vec::new();
    for file in files(&src) {
        let name = file.strip_prefix(&src).expect("a file in src").to_string_lossy().into_owned();
        if name.split('/').any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("source");
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for say in SAY {
            let elsewhere = match say {
                "#[error(" => name != REFUSALS,
                "let reason = format!(" => !REASONS.contains(&name.as_str()),
                _ => false,
            };
            for (at, _) in text.match_indices(say).filter(|_| !elsewhere) {
                let line = text[..at].lines().count();
                // Fields come first, the message last.
                let found = literals(&text[at + say.len()..]).into_iter().rfind(|(depth, _)| *depth == 1);
                let Some((_, message)) = found else { continue };
                messages.push(Message { place: format!("src/{name}:{line}"), constants: constants(&message) });
            }
        }
        // Why the node is in the state it is in: logged as it is.
        let publish = text.split_once("\nfn publish(").filter(|_| name == "node/timers.rs");
        if let Some((_, body)) = publish.and_then(|(_, function)| function.split_once(" {\n")) {
            for (_, reason) in literals(body).into_iter().filter(|(_, reason)| reason.len() >= TELLING) {
                messages.push(Message { place: format!("src/{name}: publish"), constants: constants(&reason) });
            }
        }
    }
    assert!(messages.len() > 50, "src/ is not being read");
    messages
}

/// The page, on one line.
fn page() -> String {
    let text = std::fs::read_to_string(root().join("docs/OPERATIONS.md")).expect("docs/OPERATIONS.md");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn literals_and_their_constants_are_found() {
    let call = "peer = %f(\"no\"), \"it \\\"is\\\" \\\n     {x:?} long\"); \"another\"";
    assert_eq!(literals(call), [(2, "no".to_owned()), (1, "it \"is\" {x:?} long".to_owned())]);
    assert_eq!(constants("{a}: it {b} long"), [": it ", " long"]);
    assert!(constants("{reason}").is_empty());
}

#[test]
fn every_message_is_explained() {
    let page = page();
    let missing: Vec<String> = messages()
        .iter()
        .filter_map(|message| message.constants.first().map(|beginning| (message, beginning.trim())))
        .filter(|(_, beginning)| !page.contains(beginning))
        .map(|(message, beginning)| format!("{}: {beginning}", message.place))
        .collect();
    assert!(missing.is_empty(), "not in docs/OPERATIONS.md:\n{}", missing.join("\n"));
}

#[test]
fn every_explanation_is_of_a_message() {
    let messages = messages();
    let known: Vec<&str> = messages.iter().flat_map(|message| &message.constants).map(|part| part.trim()).collect();
    let text = std::fs::read_to_string(root().join("docs/OPERATIONS.md")).expect("docs/OPERATIONS.md");
    let (_, lines) = text.split_once("\n## Log lines").expect("a section of log lines");
    let lines = lines.split("\n## ").next().unwrap_or_default();
    let rows = lines.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let stale: Vec<&str> = rows
        .filter(|row| !known.iter().any(|part| row.contains(part) && part.len() >= TELLING.min(row.len())))
        .collect();
    assert!(stale.is_empty(), "nothing in src/ says:\n{}", stale.join("\n"));
}
