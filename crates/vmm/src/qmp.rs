//! The part of QEMU's machine protocol (QMP) that tells the threads of vCPUs: text in, text out.

use crate::model::VcpuId;
use serde_json::Value;
use std::collections::BTreeMap;

/// The longest message that is read, in bytes. The answer for 1,024 vCPUs has some 200 KiB.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A dialogue with QEMU that asks for the threads of its vCPUs (QEMU, `docs/interop/qmp-spec.rst`,
/// `qapi/machine.json`: `query-cpus-fast`). Feed it what QEMU sends, and send what it says.
#[derive(Debug, Default)]
pub struct QmpDialogue {
    state: State,
    /// The bytes of a message whose end has not come yet.
    begun: Vec<u8>,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Greeting,
    Capabilities,
    Vcpus,
}

/// What follows from the bytes that QEMU sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QmpStep {
    /// More bytes are to be read.
    Read,
    /// This line is to be sent.
    Send(&'static str),
    /// The threads of the vCPUs, as QEMU numbers them.
    Threads(BTreeMap<VcpuId, i32>),
}

impl QmpDialogue {
    /// Takes bytes that QEMU sent.
    ///
    /// # Errors
    /// With the reason, if they are no QMP, or QEMU refuses the question.
    pub fn take(&mut self, bytes: &[u8]) -> Result<QmpStep, String> {
        self.begun.extend(bytes);
        while let Some(end) = self.begun.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            match self.message(&line)? {
                QmpStep::Read => {}
                step => return Ok(step),
            }
        }
        match self.begun.len() > MAX_MESSAGE_BYTES {
            true => Err(format!("QEMU's message has more than {MAX_MESSAGE_BYTES} bytes")),
            false => Ok(QmpStep::Read),
        }
    }

    fn message(&mut self, line: &[u8]) -> Result<QmpStep, String> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(QmpStep::Read);
        }
        let message: Value = serde_json::from_slice(line)
            .map_err(|error| format!("QEMU's message is no JSON: {error}"))?;
        if let Some(error) = message.get("error") {
            let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
            return Err(format!("QEMU refuses: {why}"));
        }
        let is_greeting = message.get("QMP").is_some();
        let answer = message.get("return");
        match (self.state, answer) {
            (State::Greeting, _) if is_greeting => {
                self.state = State::Capabilities;
                Ok(QmpStep::Send("{\"execute\":\"qmp_capabilities\"}\n"))
            }
            (State::Greeting, _) => Err("the socket is none of QMP: it sent no greeting".into()),
            (State::Capabilities, Some(_)) => {
                self.state = State::Vcpus;
                Ok(QmpStep::Send("{\"execute\":\"query-cpus-fast\"}\n"))
            }
            (State::Vcpus, Some(vcpus)) => threads(vcpus).map(QmpStep::Threads),
            // An event.
            (_, None) => Ok(QmpStep::Read),
        }
    }
}

fn threads(vcpus: &Value) -> Result<BTreeMap<VcpuId, i32>, String> {
    let thread = |vcpu: &Value| {
        let number = |key: &str| vcpu.get(key).and_then(Value::as_u64);
        let id = number("cpu-index").and_then(|it| u32::try_from(it).ok())?;
        let thread = number("thread-id").and_then(|it| i32::try_from(it).ok())?;
        (thread > 0).then_some((VcpuId(id), thread))
    };
    let threads = vcpus.as_array().and_then(|all| all.iter().map(thread).collect());
    threads.ok_or_else(|| "QEMU's answer does not tell the threads of its vCPUs".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As QEMU 7.2 sends it.
    const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 19, "minor": 2, "major": 7},
        "package": "Debian 1:7.2+dfsg"}, "capabilities": ["oob"]}}"#;
    const VCPUS: &str = r#"{"return": [
        {"thread-id": 4712, "props": {"core-id": 0, "thread-id": 0, "node-id": 0, "socket-id": 0},
         "qom-path": "/machine/unattached/device[0]", "cpu-index": 0, "target": "x86_64"},
        {"thread-id": 4713, "props": {"core-id": 0, "thread-id": 0, "node-id": 1, "socket-id": 1},
         "qom-path": "/machine/unattached/device[2]", "cpu-index": 1, "target": "x86_64"}]}"#;
    const EVENT: &str = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESUME"}"#;

    /// A message is one line.
    fn line(text: &str) -> Vec<u8> {
        format!("{}\r\n", text.replace('\n', "")).into_bytes()
    }

    fn asked() -> QmpDialogue {
        let mut dialogue = QmpDialogue::default();
        let sent = |step: Result<QmpStep, String>| match step {
            Ok(QmpStep::Send(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(sent(dialogue.take(&line(GREETING))).contains("qmp_capabilities"));
        assert!(sent(dialogue.take(&line("{\"return\": {}}"))).contains("query-cpus-fast"));
        dialogue
    }

    #[test]
    fn qemu_tells_the_threads_of_its_vcpus() {
        let threads = QmpStep::Threads([(VcpuId(0), 4712), (VcpuId(1), 4713)].into());
        assert_eq!(asked().take(&line(VCPUS)), Ok(threads.clone()));
        // Events come at any time, and bytes in any pieces.
        let mut dialogue = asked();
        let text = [line(EVENT), line(VCPUS)].concat();
        let (last, first) = text.split_last().unwrap();
        for byte in first {
            assert_eq!(dialogue.take(&[*byte]), Ok(QmpStep::Read));
        }
        assert_eq!(dialogue.take(&[*last]), Ok(threads));
    }

    #[test]
    fn other_answers_have_their_reason() {
        let refused = asked().take(&line(r#"{"error": {"class": "X", "desc": "not now"}}"#));
        assert_eq!(refused, Err("QEMU refuses: not now".into()));
        for answer in [
            r#"{"return": {}}"#,
            r#"{"return": [{"cpu-index": 0}]}"#,
            r#"{"return": [{"cpu-index": 0, "thread-id": 0}]}"#,
            r#"{"return": [{"cpu-index": -1, "thread-id": 7}]}"#,
        ] {
            let why = asked().take(&line(answer)).unwrap_err();
            assert!(why.contains("does not tell"), "{why}");
        }
        let greeted = |text: &str| QmpDialogue::default().take(&line(text)).unwrap_err();
        assert!(greeted("220 mail.example ESMTP").contains("no JSON"));
        assert!(greeted("{\"return\": {}}").contains("no greeting"));
        let mut dialogue = QmpDialogue::default();
        let why = dialogue.take(&vec![b' '; MAX_MESSAGE_BYTES + 1]).unwrap_err();
        assert!(why.contains("more than 1048576 bytes"), "{why}");
    }
}
