//! Citations and links lead somewhere.
//!
//! | what | where | must be |
//! |---|---|---|
//! | `reference n.m` and the numbers that follow it | Rust, Markdown, shell, Python | a heading of `docs/reference` |
//! | words in quotation marks right behind a number | the same | in that section |
//! | a relative link, with or without `#anchor` | Markdown | a file, and a heading in it |

mod tree;

use std::{collections::BTreeMap, fs};

use tree::{files, root};

/// The headings of a page outside of its code blocks, each with the line it stands in.
fn headings(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().filter_map(move |(at, line)| {
        is_code ^= line.starts_with("```");
        let title = line.trim_start_matches('#').strip_prefix(' ')?;
        (line.starts_with('#') && !is_code).then_some((at, title))
    })
}

/// Text with marks of the notation taken out and blanks made one, for comparing quotations.
fn plain(text: &str) -> String {
    let kept: String = text.chars().filter(|c| !matches!(c, '`' | '*' | '"' | '\\')).collect();
    kept.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The sections of the book by number: what stands from the heading to the next numbered one.
/// Chapters have all their sections.
fn sections(pages: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut sections = BTreeMap::new();
    for (path, page) in pages {
        let mut current: Vec<String> = Vec::new();
        let titles: BTreeMap<usize, &str> = headings(page).collect();
        for (at, line) in page.lines().enumerate() {
            let number = titles.get(&at).and_then(|title| title.split(' ').next());
            let number = number.map(|number| number.trim_end_matches('.'));
            let is_number = |n: &&str| n.split('.').all(|part| part.parse::<u32>().is_ok());
            if let Some(number) = number.filter(is_number) {
                current.retain(|above| number.starts_with(&format!("{above}.")));
                let before = sections.insert(number.to_owned(), String::new());
                assert!(before.is_none(), "{path}:{}: {number} is there already", at + 1);
                current.push(number.to_owned());
            }
            for number in &current {
                let text = sections.get_mut(number).expect("inserted at its heading");
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    sections.values_mut().for_each(|text| *text = plain(text));
    sections
}

/// A cited section, with the quotation behind its number if there is one.
#[derive(Debug, PartialEq)]
struct Citation {
    line: usize,
    number: String,
    quoted: Option<String>,
}

/// A section number at the start of `text`, and what follows it.
fn number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    let rest = &text[number.len()..];
    // A size or an offset in a table is not a section.
    let ends = !rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '/'));
    (!number.is_empty() && number.split('.').count() <= 3 && ends).then_some((number, rest))
}

/// The citations of a text: `reference 4.2, 4.3 and 6.1 to 6.4`, over the ends of comment lines.
fn citations(text: &str) -> Vec<Citation> {
    // One line of words, with a mark where each line of the file begins.
    let mut words = String::new();
    let mut starts = Vec::new();
    for line in text.lines() {
        starts.push(words.len());
        let line = line.trim_start().trim_start_matches(['/', '!', '#']).trim();
        words.push_str(line);
        words.push(' ');
    }
    let lower = words.to_ascii_lowercase();
    let mut found = Vec::new();
    for (at, _) in lower.match_indices("reference ") {
        let line = starts.partition_point(|start| *start <= at);
        let is_word = !lower[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-');
        let mut rest = &words[at + "reference ".len()..];
        while let Some((cited, behind)) = number(rest).filter(|_| is_word) {
            let quoted = [", \"", " (\"", " \"", ": \""].iter().find_map(|opening| {
                let (quoted, _) = behind.strip_prefix(opening)?.split_once('"')?;
                Some(quoted.to_owned())
            });
            found.push(Citation { line, number: cited.to_owned(), quoted });
            // Another number of a chapter that the book can have continues the list.
            let next = [", ", " and ", " to ", "; "].iter().find_map(|between| {
                behind
                    .strip_prefix(between)
                    .filter(|next| number(next).is_some_and(|(number, _)| number.contains('.')))
            });
            let chapters = || behind.strip_prefix(" to ").or_else(|| behind.strip_prefix(" and "));
            let Some(next) = next.or_else(chapters) else { break };
            rest = next;
        }
    }
    found
}

/// What is wrong with the citations of one file, as `path:line: what`.
fn wrong_citations(path: &str, text: &str, sections: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for Citation { line, number, quoted } in citations(text) {
        let Some(section) = sections.get(&number) else {
            found.push(format!("{path}:{line}: docs/reference has no section {number}"));
            continue;
        };
        let parts = quoted.iter().flat_map(|quoted| quoted.split("..."));
        for part in parts.map(plain).filter(|part| !section.contains(part.as_str())) {
            found.push(format!("{path}:{line}: section {number} does not say \"{part}\""));
        }
    }
    found
}

fn book() -> BTreeMap<String, String> {
    let pages = files(|name| name.ends_with(".md"));
    let is_page = |path: &String| path.starts_with("docs/reference/");
    sections(&pages.into_iter().filter(|(path, _)| is_page(path)).collect())
}

#[test]
fn every_citation_names_a_section() {
    let sections = book();
    let sources =
        files(|name| [".rs", ".md", ".sh", ".py"].iter().any(|ending| name.ends_with(ending)));
    // This file has examples, and right ones of wrong citations.
    let checked = sources.iter().filter(|(path, _)| *path != "apps/common/tests/citations.rs");
    let cited: usize = checked.clone().map(|(_, text)| citations(text).len()).sum();
    assert!(cited > 300, "only {cited} citations found");
    let found: Vec<_> =
        checked.flat_map(|(path, text)| wrong_citations(path, text, &sections)).collect();
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

/// The anchor that a heading gets where the pages are shown.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The targets of the links of a page, each with its line.
fn links(page: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut found = Vec::new();
    for (at, line) in page.lines().enumerate() {
        is_code ^= line.starts_with("```");
        let outside = if is_code { "" } else { line };
        let targets = outside.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(targets.map(|(target, _)| (at + 1, target)));
    }
    found
}

/// What is wrong with the links of one page.
fn wrong_links(path: &str, page: &str, exists: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (line, target) in links(page) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let mut at: Vec<&str> = path.split('/').collect();
        if !file.is_empty() {
            at.pop();
            for part in file.split('/') {
                match part {
                    "." | "" => {}
                    ".." => drop(at.pop()),
                    part => at.push(part),
                }
            }
        }
        let Some(text) = exists(&at.join("/")) else {
            found.push(format!("{path}:{line}: {target} leads nowhere"));
            continue;
        };
        if !heading.is_empty() && !headings(&text).any(|(_, title)| anchor(title) == heading) {
            found.push(format!("{path}:{line}: no heading for {target}"));
        }
    }
    found
}

#[test]
fn every_link_between_pages_resolves() {
    let pages = files(|name| name.ends_with(".md"));
    // A folder has no headings; a file that is not text has none either.
    let exists = |path: &str| {
        let path = root().join(path);
        path.exists().then(|| fs::read_to_string(path).unwrap_or_default())
    };
    let count: usize = pages.values().map(|page| links(page).len()).sum();
    assert!(count > 10, "only {count} links found");
    let found: Vec<_> =
        pages.iter().flat_map(|(path, page)| wrong_links(path, page, exists)).collect();
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

/// Each rule must be able to fail.
#[test]
fn wrong_citations_and_links_are_found() {
    let page = "# 6. Data\n\n## 6.1 Rings\n\nA *ring* of `blocks`.\n\n## 6.2 Rest\n\nNone.\n";
    let sections = sections(&BTreeMap::from([("a.md".to_owned(), page.to_owned())]));
    assert_eq!(sections.keys().collect::<Vec<_>>(), ["6", "6.1", "6.2"]);
    assert!(sections["6"].contains("none.") && !sections["6.1"].contains("none."));
    let wrong = |text: &str| wrong_citations("a.rs", text, &sections);
    assert!(wrong("/// Source: reference 6.1, 6.2; PRM 9.9.").is_empty());
    assert!(wrong("//! Reference 6, \"Ring of blocks\".").is_empty());
    assert_eq!(wrong("x\n/// reference 6.3."), ["a.rs:2: docs/reference has no section 6.3"]);
    assert_eq!(wrong("// reference 6.1 to 6.7 say").len(), 1);
    assert_eq!(wrong("// as the reference\n//   7.1, 6.1 and 5.2 say").len(), 2);
    assert_eq!(wrong("// reference 6.2, \"ring\"").len(), 1);
    assert_eq!(wrong("// reference 6.1, \"a ring ... chains\"").len(), 1);
    assert!(wrong("// a preference 9.9, a reference 3x, reference 19/4").is_empty());

    let page = "[a](b.md#one-two) [c](https://x/#y) [d](#here)\n\n## Here\n";
    let exists = |path: &str| match path {
        "docs/b.md" => Some("# One: two\n".to_owned()),
        "docs/a.md" => Some(page.to_owned()),
        _ => None,
    };
    assert!(wrong_links("docs/a.md", page, exists).is_empty());
    assert_eq!(wrong_links("docs/x/a.md", "[a](../b.md)", exists), [""; 0]);
    let found = wrong_links("docs/a.md", "\n[a](../b.md) [b](b.md#three)\n", exists);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("docs/a.md:2: ../b.md"), "{found:?}");
}
