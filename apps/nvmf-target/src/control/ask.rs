//! How cores are asked: a request is carried out while somebody waits for its result, or never.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use anyhow::{Context, Result, anyhow, ensure};

use super::Control;
use crate::transport::{Command, Server};

impl Control {
    /// Lets a core do something, and waits for the result. What a core has not begun when the time
    /// is over it leaves alone.
    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        poller: usize,
        run: impl FnOnce(&mut Server) -> T + Send + 'static,
    ) -> Result<T> {
        let (answer, wait) = sync_channel(1);
        // Who takes it first, the core or the end of the time, says what becomes of it.
        let is_taken = Arc::new(AtomicBool::new(false));
        let by_core = is_taken.clone();
        let command = Command::new(move |server| {
            if !by_core.swap(true, Ordering::AcqRel) {
                drop(answer.send(run(server)));
            }
        });
        ensure!(!self.pollers[poller].is_abandoned(), "core {poller} has ended: the target stops");
        let busy = || anyhow!("core {poller} has too much to do; try again");
        self.pollers[poller].push(command).map_err(|_| busy())?;
        let patience = self.patience;
        if let Ok(result) = wait.recv_timeout(patience) {
            return Ok(result);
        }
        let silent = || format!("core {poller} did not answer within {patience:?}; try again");
        ensure!(is_taken.swap(true, Ordering::AcqRel), silent());
        // It is at it, or has ended.
        wait.recv_timeout(patience).with_context(silent)
    }

    /// Lets the first core, which all changes of the offer go through, do something.
    pub(super) fn first<T: Send + 'static, E: std::error::Error + Send + Sync + 'static>(
        &mut self,
        run: impl FnOnce(&mut Server) -> Result<T, E> + Send + 'static,
    ) -> Result<T> {
        Ok(self.ask(0, run)??)
    }

    /// Changes what commands are carried out by: when this returns, no core goes by what was
    /// before. One that does not answer takes note of it when it goes on.
    pub(super) fn change<T: Send + 'static, E: std::error::Error + Send + Sync + 'static>(
        &mut self,
        run: impl FnOnce(&mut Server) -> Result<T, E> + Send + 'static,
    ) -> Result<T> {
        let done = self.first(run)?;
        for poller in 1..self.pollers.len() {
            // A core looks at the offer between this and its queues.
            if let Err(error) = self.ask(poller, |_| ()) {
                tracing::warn!(%error, "a core takes note of a change when it goes on");
            }
        }
        Ok(done)
    }

    /// Takes a back end away that no namespace names any more, on all cores: on one that does not
    /// answer when the next namespace comes.
    pub(super) fn drop_backend(&mut self, place: usize) {
        self.left.extend((0..self.pollers.len()).map(|poller| (poller, place)));
        if let Err(error) = self.drop_left() {
            tracing::warn!(%error, "what was behind a namespace is open until the next one comes");
        }
    }

    /// Takes back ends away that cores still have.
    ///
    /// # Errors
    ///
    /// A core that does not answer.
    pub(super) fn drop_left(&mut self) -> Result<()> {
        let mut done = Ok(());
        for (poller, place) in std::mem::take(&mut self.left) {
            if let Err(error) = self.ask(poller, move |server| server.drop_backend(place)) {
                self.left.push((poller, place));
                done = Err(error);
            }
        }
        done
    }
}
