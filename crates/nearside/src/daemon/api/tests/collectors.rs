//! Prometheus's own parsers read `/metrics` (Debian's python3-prometheus-client): `make api-test`.

use super::harness::{Daemon, get};
use crate::daemon::{
    api::Limits,
    snapshot::{SeenDomain, examples},
};
use std::{fs, process::Command};

/// Reads both forms of a page. Prints the samples if both parsers find the same families with type
/// and help, and the same samples.
const READER: &str = r#"
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text
def read(parser, path):
    families = list(parser(open(path).read()))
    for family in families:
        assert family.documentation and family.type in ("gauge", "counter"), family
    samples = [(s.name, tuple(sorted(s.labels.items())), s.value)
               for family in families for s in family.samples]
    assert len(samples) == len(set(samples)), "a sample occurs twice"
    return sorted((family.name, family.type) for family in families), sorted(samples)
first, second = (read(*it) for it in zip((text, open_metrics), sys.argv[1:]))
assert first == second, (first, second)
for name, labels, value in first[1]:
    print(name, dict(labels).get("domain"), value)
"#;

#[test]
#[ignore = "needs Debian's python3-prometheus-client: make api-test"]
fn prometheus_reads_both_forms_of_the_metrics() {
    const CGROUP: &str = "/machine.slice/a\"b\\x2d{}\n.scope";
    let daemon = Daemon::new(Limits::default());
    let mut seen = examples::seen();
    seen.domains.push(SeenDomain { cgroup: CGROUP.into(), ..SeenDomain::default() });
    daemon.api.published.publish(seen);
    let text = daemon.ask(&get("/metrics"));
    let asked = get("/metrics").replacen(
        "\r\n\r\n",
        "\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n",
        1,
    );
    let open_metrics = daemon.ask(&asked);
    let paths = [("text", &text), ("open-metrics", &open_metrics)].map(|(name, reply)| {
        assert_eq!(reply.status, 200, "{}", reply.body);
        let path = daemon.folder.path().join(name);
        fs::write(&path, &reply.body).unwrap();
        path
    });
    let read = Command::new("/usr/bin/python3").args(["-c", READER]).args(paths).output().unwrap();
    let said = String::from_utf8(read.stdout).unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    assert!(said.lines().count() > 60, "{said}");
    assert!(said.contains("nearside_intervals_total None 17.0\n"), "{said}");
    assert!(said.contains(&format!("nearside_domain_refusals_total {CGROUP} 0.0\n")), "{said}");
}
