//! The changes of `mutants.toml` have their places: `scripts/mutants.py` can make each of them.

use std::path::Path;

#[test]
fn each_mutant_changes_one_place_of_the_product() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the tree");
    let list: toml::Table = read("apps/simulation/mutants.toml").parse().expect("a list");
    let mutants = list["mutant"].as_array().expect("mutants");
    assert!(mutants.len() >= 10, "{}", mutants.len());
    for mutant in mutants {
        let [what, file, from, to] = ["what", "file", "from", "to"].map(|key| {
            mutant.get(key).and_then(toml::Value::as_str).unwrap_or_else(|| panic!("{mutant}"))
        });
        assert_eq!(read(file).matches(from).count(), 1, "{what}: {file}");
        assert_ne!(from, to, "{what}");
        assert!(!file.starts_with("apps/simulation") && !file.contains("test"), "{what}");
    }
}
