//! The modules of a crate, the paths in their code, and the files that these lead to.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::tokens::{Token, tokens};

/// Names of names of names: what follows more is a circle of its own.
const MOST_STEPS: usize = 32;

/// A path of modules from the crate's root, or of names in the code.
type Names = Vec<String>;

/// A module, in a file of its own or not.
#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    /// Names that are defined in it, at any depth.
    items: BTreeSet<String>,
    /// Names that it imports or exports, and where they come from.
    names: BTreeMap<String, Names>,
    /// Modules all of whose names it imports or exports.
    globs: Vec<Names>,
    /// Paths that its code takes something by.
    paths: Vec<Names>,
}

/// The modules of a library or program.
#[derive(Debug, Default)]
pub(crate) struct Crate {
    modules: BTreeMap<Names, Module>,
}

impl Crate {
    /// Reads the module tree that starts with a file.
    pub(crate) fn read(first: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Self {
        let mut found = Self::default();
        let folder = first.parent().expect("a file lies in a folder").to_owned();
        let mut open = vec![(Names::new(), first.to_owned(), folder)];
        while let Some((names, file, folder)) = open.pop() {
            let text = read(&file).unwrap_or_else(|| panic!("{} is missing", file.display()));
            let mut reader = Reader::new(&mut found.modules, file, names, folder);
            reader.read(&tokens(&text));
            for (names, candidates) in reader.children {
                let (file, folder) = candidates
                    .into_iter()
                    .find(|(file, _)| read(file).is_some())
                    .unwrap_or_else(|| panic!("module {names:?} has no file"));
                open.push((names, file, folder));
            }
        }
        found
    }

    /// From which file names are taken into which, but for those of the folders that a file lies
    /// in: they hold for all that is in there.
    pub(crate) fn arrows(&self) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
        self.arrows_to(|from, end| !from.starts_with(end))
    }

    /// From which file names are taken into which, those of its folders included.
    pub(crate) fn all_arrows(&self) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
        self.arrows_to(|_, _| true)
    }

    /// The arrows between two modules that count.
    fn arrows_to(
        &self,
        counts: impl Fn(&[String], &[String]) -> bool,
    ) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
        let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (names, module) in &self.modules {
            let arrows = found.entry(module.file.clone()).or_default();
            let ends = module.paths.iter().filter_map(|path| self.module_of(names, path, 0));
            let ends = ends.filter(|end| counts(names, end));
            let files = ends.map(|end| &self.modules[&end].file);
            arrows.extend(files.filter(|file| **file != module.file).cloned());
        }
        found
    }

    /// The module that defines what a path in module `from` names; `None` for another crate's.
    fn module_of(&self, from: &[String], path: &[String], steps: usize) -> Option<Names> {
        if steps > MOST_STEPS {
            return None;
        }
        let mut here = from.to_vec();
        let mut rest = path;
        while let Some((word, behind)) = rest.split_first() {
            match word.as_str() {
                "crate" => here.clear(),
                "self" => {}
                "super" => drop(here.pop()?),
                _ => break,
            }
            rest = behind;
        }
        let is_outside = rest.len() == path.len();
        for (at, word) in rest.iter().enumerate() {
            let child = [&here[..], std::slice::from_ref(word)].concat();
            if self.modules.contains_key(&child) {
                here = child;
                continue;
            }
            let module = &self.modules[&here];
            let behind = &rest[at + 1..];
            if let Some(target) = module.names.get(word).filter(|target| *target != path) {
                let target = [&target[..], behind].concat();
                return self.module_of(&here, &target, steps + 1);
            }
            if module.items.contains(word) {
                return Some(here);
            }
            let by_glob = module.globs.iter().find_map(|glob| {
                let all_of = self.module_of(&here, glob, steps + 1).filter(|end| *end != here)?;
                self.has(&all_of, word, steps + 1).then_some(all_of)
            });
            if let Some(all_of) = by_glob {
                let target = [&["self".to_owned()], &rest[at..]].concat();
                return self.module_of(&all_of, &target, steps + 1);
            }
            // A name that no module here has is another crate's.
            return (!is_outside || at > 0).then_some(here);
        }
        Some(here)
    }

    /// Whether a module has this name, of its own or of another.
    fn has(&self, names: &[String], word: &str, steps: usize) -> bool {
        let module = &self.modules[names];
        let child = [names, &[word.to_owned()]].concat();
        let is_near = module.items.contains(word) || module.names.contains_key(word);
        is_near
            || self.modules.contains_key(&child)
            || module.globs.iter().any(|glob| {
                let all_of = self.module_of(names, glob, steps + 1).filter(|end| end != names);
                steps < MOST_STEPS
                    && all_of.is_some_and(|all_of| self.has(&all_of, word, steps + 1))
            })
    }
}

/// A module to come, and where its file may be: each with the folder of its own children.
type Child = (Names, Vec<(PathBuf, PathBuf)>);

/// Reads the modules of one file.
struct Reader<'a> {
    modules: &'a mut BTreeMap<Names, Module>,
    file: PathBuf,
    /// The module that is read, and the depth of braces at which each inline one ends.
    names: Names,
    ends: Vec<usize>,
    /// Where files of child modules lie.
    folder: PathBuf,
    children: Vec<Child>,
    /// What each module passes on, and the words of its code: it may use these names itself.
    passed_on: Vec<(Names, String, Names)>,
    words: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    fn new(
        modules: &'a mut BTreeMap<Names, Module>,
        file: PathBuf,
        names: Names,
        folder: PathBuf,
    ) -> Self {
        let (ends, children, passed_on) = (vec![], vec![], vec![]);
        let words = BTreeSet::new();
        let mut reader = Self { modules, file, names, ends, folder, children, passed_on, words };
        reader.module();
        reader
    }

    /// The module that is read.
    fn module(&mut self) -> &mut Module {
        let fresh = || Module { file: self.file.clone(), ..Module::default() };
        self.modules.entry(self.names.clone()).or_insert_with(fresh)
    }

    fn read(&mut self, all: &[Token]) {
        let (mut here, mut depth) = (0, 0);
        let mut place = None;
        // Child modules whose names start paths; declared before or behind their use.
        let declared = declared_modules(all);
        while here < all.len() {
            if let Token::Word(word) = &all[here] {
                self.words.insert(word.clone());
            }
            match &all[here..] {
                [Token::Sign('#'), Token::Sign('['), ..] => {
                    let end = closing(all, here + 1);
                    let attribute = &all[here + 2..end];
                    here = end + 1;
                    if is_test(attribute) {
                        here = end_of_item(all, here);
                    } else if let [Token::Word(word), Token::Sign('='), Token::Text(text)] =
                        attribute
                        && word == "path"
                    {
                        place = Some(text.clone());
                    }
                    continue;
                }
                [Token::Word(word), Token::Word(name), Token::Sign(sign), ..]
                    if word == "mod" && (*sign == ';' || *sign == '{') =>
                {
                    if *sign == ';' {
                        self.declare(name, place.take());
                    } else {
                        self.names.push(name.clone());
                        self.ends.push(depth);
                        self.module();
                        depth += 1;
                    }
                    here += 3;
                    continue;
                }
                // `use<..>` in a type says what it captures.
                [Token::Word(word), next, ..] if word == "use" && *next != Token::Sign('<') => {
                    let is_public = is_public(&all[..here]);
                    let end = (here..all.len()).find(|at| all[*at] == Token::Sign(';'));
                    let end = end.unwrap_or(all.len());
                    self.import(&all[here + 1..end], &Names::new(), is_public);
                    here = end + 1;
                    continue;
                }
                [Token::Word(word), Token::Word(name), ..] if DEFINES.contains(&word.as_str()) => {
                    self.module().items.insert(name.clone());
                    here += 1;
                }
                [Token::Word(word), Token::Sign('!'), Token::Word(name), ..]
                    if word == "macro_rules" =>
                {
                    self.module().items.insert(name.clone());
                    here += 2;
                }
                [Token::Word(word), Token::PathSep, ..] => {
                    let is_start = here == 0 || all[here - 1] != Token::PathSep;
                    let is_ours = ["crate", "super", "self"].contains(&word.as_str());
                    let (path, end) = path_at(all, here);
                    if is_start && (is_ours || declared.contains(word)) {
                        self.module().paths.push(path);
                    }
                    here = end;
                    continue;
                }
                [Token::Sign('{'), ..] => depth += 1,
                [Token::Sign('}'), ..] => {
                    depth -= 1;
                    if self.ends.last() == Some(&depth) {
                        self.ends.pop();
                        self.names.pop();
                    }
                }
                _ => {}
            }
            here += 1;
        }
        for (names, name, path) in self.passed_on.drain(..) {
            if self.words.contains(&name)
                && let Some(module) = self.modules.get_mut(&names)
            {
                module.paths.push(path);
            }
        }
    }

    /// A child module in a file of its own.
    fn declare(&mut self, name: &str, place: Option<String>) {
        let names = [&self.names[..], &[name.to_owned()]].concat();
        let candidates = match place {
            Some(place) => {
                let file = self.file.parent().expect("a file lies in a folder").join(place);
                let folder = file.parent().expect("a file lies in a folder").to_owned();
                vec![(file, folder)]
            }
            None => {
                let folder = self.folder.join(name);
                let beside = self.folder.join(format!("{name}.rs"));
                vec![(beside, folder.clone()), (folder.join("mod.rs"), folder)]
            }
        };
        self.children.push((names, candidates));
    }

    /// A tree of imports below `prefix`.
    fn import(&mut self, tree: &[Token], prefix: &[String], is_public: bool) {
        let mut names = prefix.to_vec();
        for (at, token) in tree.iter().enumerate() {
            match token {
                Token::Word(word) if word == "as" => {
                    let Some(Token::Word(name)) = tree.get(at + 1) else { return };
                    return self.imported(name.clone(), names, is_public);
                }
                // A group may name its own module.
                Token::Word(word) if word == "self" && !names.is_empty() => {}
                Token::Word(word) => names.push(word.clone()),
                Token::Sign('*') => {
                    if !is_public {
                        self.module().paths.push(names.clone());
                    }
                    return self.module().globs.push(names);
                }
                Token::Sign('{') => {
                    let inside = &tree[at + 1..closing(tree, at)];
                    for branch in branches(inside) {
                        self.import(branch, &names, is_public);
                    }
                    return;
                }
                _ => {}
            }
        }
        if let Some(name) = names.last().cloned() {
            self.imported(name, names, is_public);
        }
    }

    fn imported(&mut self, name: String, names: Names, is_public: bool) {
        // A facade takes nothing of what it only passes on.
        if is_public {
            self.passed_on.push((self.names.clone(), name.clone(), names.clone()));
        } else {
            self.module().paths.push(names.clone());
        }
        self.module().names.insert(name, names);
    }
}

/// Words in front of a name that they define.
const DEFINES: [&str; 8] = ["struct", "enum", "fn", "const", "static", "type", "trait", "union"];

fn declared_modules(all: &[Token]) -> BTreeSet<String> {
    let pairs = all.windows(2).filter_map(|pair| match pair {
        [Token::Word(word), Token::Word(name)] if word == "mod" => Some(name.clone()),
        _ => None,
    });
    pairs.collect()
}

/// Whether `pub`, or `pub` and where, stands at the end.
fn is_public(before: &[Token]) -> bool {
    let word = match before.last() {
        Some(Token::Sign(')')) => {
            let open = before.iter().rposition(|token| *token == Token::Sign('('));
            open.and_then(|open| open.checked_sub(1)).map(|at| &before[at])
        }
        last => last,
    };
    word == Some(&Token::Word("pub".into()))
}

/// The names of the path that starts at `here`, and where it ends.
fn path_at(all: &[Token], here: usize) -> (Names, usize) {
    let mut names = Names::new();
    let mut at = here;
    while let Some(Token::Word(word)) = all.get(at) {
        names.push(word.clone());
        at += 1;
        if all.get(at) != Some(&Token::PathSep) {
            break;
        }
        at += 1;
    }
    (names, at)
}

/// Where the bracket at `open` is closed.
fn closing(all: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in all.iter().enumerate().skip(open) {
        match token {
            Token::Sign('(' | '[' | '{') => depth += 1,
            Token::Sign(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    all.len()
}

/// The parts between commas, outside of brackets.
fn branches(all: &[Token]) -> Vec<&[Token]> {
    let mut depth = 0;
    let is_comma = |token: &Token| {
        match token {
            Token::Sign('{') => depth += 1,
            Token::Sign('}') => depth -= 1,
            _ => {}
        }
        depth == 0 && *token == Token::Sign(',')
    };
    all.split(is_comma).filter(|branch| !branch.is_empty()).collect()
}

/// Whether an attribute leaves its item to tests.
fn is_test(attribute: &[Token]) -> bool {
    let word = |text: &str| Token::Word(text.into());
    let inside = match attribute {
        [cfg, Token::Sign('('), inside @ ..] if *cfg == word("cfg") => inside,
        _ => return false,
    };
    match inside {
        [all, Token::Sign('('), inside @ ..] if *all == word("all") => {
            branches(inside).iter().any(|branch| branch[0] == word("test"))
        }
        inside => inside.first() == Some(&word("test")),
    }
}

/// Where the item that starts at `here` ends, its attributes included.
fn end_of_item(all: &[Token], mut here: usize) -> usize {
    while let [Token::Sign('#'), Token::Sign('['), ..] = &all[here..] {
        here = closing(all, here + 1) + 1;
    }
    let behind = all[here..].iter().skip_while(|token| **token == Token::Word("pub".into()));
    let is_import = behind.take(1).any(|token| *token == Token::Word("use".into()));
    while here < all.len() {
        match &all[here] {
            Token::Sign(';') => return here + 1,
            Token::Sign('{') if !is_import => return closing(all, here) + 1,
            Token::Sign('(' | '[' | '{') => here = closing(all, here) + 1,
            // A field, a variant or an argument ends with those around it.
            Token::Sign('}' | ')') => return here,
            _ => here += 1,
        }
    }
    here
}
