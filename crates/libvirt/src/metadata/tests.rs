use super::*;
use crate::{CellPlacement, Keep, MemoryMode, Placement, complete, strip};
use nearside_topology::{Distances, NodeId, Topology};

const TEXT: &str = "<domain>
  <name>a &lt;b&gt; &amp; c</name>
  <vcpu>2</vcpu> <!-- two -->
  <cputune>
    <vcpupin vcpu='1' cpuset='0-3'/>
  </cputune>
  <cpu>
    <numa>
      <cell cpus='0' memory='8'/>
      <cell cpus='1' memory='8'/>
    </numa>
  </cpu>
</domain>
";

fn placement() -> Placement {
    let place = |nodes: &str, cpus: &str| CellPlacement {
        nodes: nodes.parse().unwrap(),
        cpus: cpus.parse().unwrap(),
    };
    Placement {
        cells: vec![place("0", "0-3"), place("1", "4-7")],
        pins_vcpus: true,
        distances: Some(Distances::uniform(&[NodeId(0), NodeId(1)])),
        ..Placement::default()
    }
}

fn intent(domain: &Domain) -> Intent {
    let sizes = [(1, 8192, None), (1, 8192, None)];
    Intent::of(domain, MemoryMode::Strict, sizes, &Topology::default())
}

/// The domain with bindings and metadata.
fn placed(text: &str) -> (Domain, Metadata) {
    let before = Domain::read(text).unwrap();
    let after = Domain::read(&complete(&before, &placement())).unwrap();
    let metadata = Metadata { intent: intent(&after), wrote: Written::between(&before, &after) };
    (Domain::read(&metadata.write_to(&after).unwrap()).unwrap(), metadata)
}

#[test]
fn metadata_name_the_values_that_were_added_and_no_others() {
    let (domain, metadata) = placed(TEXT);
    let wrote = serde_json::to_string(&metadata.wrote).unwrap();
    assert_eq!(
        wrote,
        "{\"memory\":\"0-1\",\"memnode\":{\"0\":\"0\",\"1\":\"1\"},\"vcpupin\":{\"0\":\"0-3\"},\
         \"emulatorpin\":\"0-7\",\"distances\":[[10,20],[20,10]],\"sections\":[\"numatune\"]}"
    );
    assert_eq!(Metadata::of(&domain).unwrap(), Some(metadata));
    // libvirt's order, and no character that it would escape anew.
    let begin =
        "</name>\n  <metadata>\n    <nearside:domain xmlns:nearside='urn:nearside:libvirt'>{";
    assert!(domain.text().contains(begin), "{}", domain.text());
    assert!(domain.text().contains("a \\u003cb\\u003e \\u0026 c"), "{}", domain.text());
}

#[test]
fn stripping_gives_back_the_operators_text() {
    let (domain, metadata) = placed(TEXT);
    let stripped = strip(&domain, &metadata, Keep::Nothing).unwrap();
    // Only a cell that had no children stays open.
    let expected = TEXT.replace("memory='8'/>", "memory='8'>\n      </cell>");
    assert_eq!(Metadata::remove_from(&stripped), expected);
    let kept = strip(&domain, &metadata, Keep::Distances).unwrap();
    assert_eq!(kept.distances(), domain.distances());
    assert_eq!((kept.numatune, kept.pins.vcpus.len()), (None, 1));
}

#[test]
fn values_that_the_operator_changed_stay() {
    let (domain, metadata) = placed(TEXT);
    for (old, new, stays) in [
        ("<emulatorpin cpuset='0-7'/>", "<emulatorpin cpuset='0-3'/>", true),
        ("<vcpupin vcpu='0' cpuset='0-3'/>", "<vcpupin vcpu='0' cpuset='2'/>", true),
        ("mode='strict' nodeset='0-1'", "mode='strict' nodeset='0-2'", true),
        ("mode='strict' nodeset='0-1'", "mode='interleave' nodeset='0-1'", true),
        ("cellid='1' mode='strict' nodeset='1'", "cellid='1' mode='strict' nodeset='0'", true),
        ("<sibling id='1' value='20'/>", "<sibling id='1' value='21'/>", true),
        // Another way to write the same value.
        ("<emulatorpin cpuset='0-7'/>", "<emulatorpin  cpuset=\"0-3,4-7\"/>", false),
        ("nodeset='0-1'", "nodeset='0,1'", false),
    ] {
        let text = domain.text().replacen(old, new, 1);
        assert_ne!(text, domain.text(), "{old}");
        let changed = Domain::read(&text).unwrap();
        let stripped = strip(&changed, &metadata, Keep::Nothing).unwrap();
        assert_eq!(stripped.text().contains(new), stays, "{new}\n{}", stripped.text());
    }
}

#[test]
fn metadata_of_others_stay_and_own_ones_are_replaced() {
    let others = "  <metadata>\n    <a:b xmlns:a='x'><c/></a:b> <!-- ours -->\n  </metadata>\n";
    let text = TEXT.replace("  <vcpu>", &format!("{others}  <vcpu>"));
    let (domain, mut metadata) = placed(&text);
    let inside = "<!-- ours -->\n    <nearside:domain ";
    assert!(domain.text().contains(inside), "{}", domain.text());
    metadata.wrote = Written::default();
    let again = Domain::read(&metadata.write_to(&domain).unwrap()).unwrap();
    assert_eq!(again.text().matches("nearside:domain ").count(), 1);
    assert_eq!(Metadata::of(&again).unwrap(), Some(metadata));
    assert!(Metadata::remove_from(&again).contains(others), "{}", again.text());
}

#[test]
fn a_section_that_others_use_stays() {
    let (domain, metadata) = placed(
        &TEXT.replace("  <cputune>\n    <vcpupin vcpu='1' cpuset='0-3'/>\n  </cputune>\n", ""),
    );
    assert_eq!(metadata.wrote.sections, ["cputune", "numatune"]);
    let shared = domain.text().replace("<cputune>", "<cputune>\n    <shares>9</shares>");
    let shared = Domain::read(&shared).unwrap();
    let stripped = strip(&shared, &metadata, Keep::Nothing).unwrap().text().to_owned();
    assert!(stripped.contains("<cputune>\n    <shares>9</shares>\n  </cputune>"), "{stripped}");
    assert!(!stripped.contains("numatune>"), "{stripped}");
}

#[test]
fn a_nodeset_that_was_missing_is_taken_out_of_the_operators_element() {
    let text = "<domain><vcpu>1</vcpu><numatune><memory mode='interleave' /></numatune></domain>";
    let before = Domain::read(text).unwrap();
    let placement = Placement { mode: MemoryMode::Interleave, ..placement() };
    let after = Domain::read(&complete(&before, &placement)).unwrap();
    let wrote = Written::between(&before, &after);
    assert_eq!((wrote.nodeset.as_deref(), wrote.memory.as_deref()), (Some("0"), None));
    let intent = Intent::of(&after, MemoryMode::Interleave, [(1, 1, None)], &Topology::default());
    let stripped = strip(&after, &Metadata { intent, wrote }, Keep::Nothing).unwrap();
    assert_eq!(stripped.text(), text);
}

#[test]
fn elements_that_are_no_metadata_of_nearsides_are_refused_or_passed() {
    let of = |inner: &str| {
        let text = format!("<domain><metadata>{inner}</metadata><vcpu>1</vcpu></domain>");
        Metadata::of(&Domain::read(&text).unwrap())
    };
    assert_eq!(of("<domain xmlns='x'>{}</domain><nearside/>").unwrap(), None);
    for (json, told) in [
        ("", "EOF while parsing"),
        ("{}", "missing field `intent`"),
        ("{\"intent\":7}", "invalid type: integer `7`"),
        (
            "{\"intent\":{\"version\":2,\"name\":null,\"mode\":\"strict\",\"cells\":[],\
             \"distances\":null,\"home_distances\":null},\"wrote\":{}}",
            "version: read 2, expected 1",
        ),
    ] {
        let element = format!("<d:domain xmlns:d='{NAMESPACE}'>{json}</d:domain>");
        let message = of(&element).unwrap_err().to_string();
        assert!(message.starts_with(told), "{message}");
    }
}
