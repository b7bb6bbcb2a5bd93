//! Rust text as tokens: as much of the language as its paths need.

/// A piece of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// A name, a keyword or a number.
    Word(String),
    /// What a string literal holds, with its escapes as they stand.
    Text(String),
    /// `::`.
    PathSep,
    /// Another sign.
    Sign(char),
}

/// Takes comments, blanks and lifetimes away, and reads the rest.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let mut found = Vec::new();
    let mut here = 0;
    while here < chars.len() {
        match at(here) {
            '/' if at(here + 1) == '/' => {
                while here < chars.len() && at(here) != '\n' {
                    here += 1;
                }
            }
            '/' if at(here + 1) == '*' => here = end_of_comment(&chars, here),
            '"' => {
                let end = end_of_string(&chars, here + 1);
                found.push(Token::Text(chars[here + 1..end].iter().collect()));
                here = end + 1;
            }
            '\'' if at(here + 1) == '\\' || at(here + 2) == '\'' => {
                // An escaped sign is never the last one.
                here += if at(here + 1) == '\\' { 3 } else { 2 };
                while here < chars.len() && at(here) != '\'' {
                    here += 1;
                }
                here += 1;
            }
            '\'' => here = end_of_word(&chars, here + 1),
            first if is_word(first) => {
                let end = end_of_word(&chars, here);
                let word: String = chars[here..end].iter().collect();
                let hashes = chars[end..].iter().take_while(|sign| **sign == '#').count();
                let is_raw = ["r", "br", "cr"].contains(&word.as_str());
                if is_raw && at(end + hashes) == '"' {
                    let start = end + hashes + 1;
                    let close = end_of_raw(&chars, start, hashes);
                    found.push(Token::Text(chars[start..close].iter().collect()));
                    here = close + hashes + 1;
                } else {
                    found.push(Token::Word(word));
                    here = end;
                }
            }
            ':' if at(here + 1) == ':' => {
                found.push(Token::PathSep);
                here += 2;
            }
            sign => {
                if !sign.is_whitespace() {
                    found.push(Token::Sign(sign));
                }
                here += 1;
            }
        }
    }
    found
}

fn is_word(sign: char) -> bool {
    sign == '_' || sign.is_alphanumeric()
}

fn end_of_word(chars: &[char], start: usize) -> usize {
    start + chars[start..].iter().take_while(|sign| is_word(**sign)).count()
}

fn end_of_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut here) = (0, start);
    while here < chars.len() {
        match chars[here..] {
            ['/', '*', ..] => (depth, here) = (depth + 1, here + 2),
            ['*', '/', ..] => (depth, here) = (depth - 1, here + 2),
            _ => here += 1,
        }
        if depth == 0 {
            break;
        }
    }
    here
}

/// Where the closing quote stands.
fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut here = start;
    while here < chars.len() && chars[here] != '"' {
        here += if chars[here] == '\\' { 2 } else { 1 };
    }
    here.min(chars.len())
}

/// Where the closing quote stands, which so many `#` follow.
fn end_of_raw(chars: &[char], start: usize, hashes: usize) -> usize {
    let ends = |at: &usize| {
        let behind = chars[at + 1..].iter().take(hashes);
        chars[*at] == '"' && behind.filter(|sign| **sign == '#').count() == hashes
    };
    (start..chars.len()).find(ends).unwrap_or(chars.len())
}
