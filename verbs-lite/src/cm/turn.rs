//! [`Turn`]: whose turn it is in a list that is asked for in parts.

/// Goes round a list from call to call, so that no part of it is left out for good.
#[derive(Debug, Default)]
pub(super) struct Turn(usize);

impl Turn {
    /// The next `most` of a list.
    pub(super) fn next_of<T>(&mut self, mut all: Vec<T>, most: usize) -> Vec<T> {
        if !all.is_empty() {
            let first = self.0 % all.len();
            all.rotate_left(first);
            all.truncate(most);
            self.0 = self.0.wrapping_add(all.len());
        }
        all
    }
}
