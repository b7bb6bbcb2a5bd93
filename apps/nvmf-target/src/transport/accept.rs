//! Hosts come: their requests are checked, and their queues made.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrocx::verbs::cm::{ConnParams, ConnRequest};
use ferrocx::verbs::{InitAttr, Qp, QpConfig};
use rtrb::PushError;
use zerocopy::IntoBytes;

use super::session::{self, Link, Parts, Session, wr};
use super::{Asked, CONNECT_PATIENCE, Coming, Server, ServerError, name};
use crate::backend;
use crate::controller::share::{Newcomer, who_makes_way};
use crate::controller::{ADMIN_PAGE_BYTES, Queue, Role};
use crate::proto::cm::{Accept, Reject, Request};
use crate::proto::sqe::{CQE_BYTES, SQE_BYTES};

/// READs under way at most: what devices of the family have.
const MAX_READS: u8 = 16;
/// Queues without Connect that one address may have on a core: hosts make one after the other.
const MAX_UNCONNECTED: usize = 16;
/// Queues without Connect that a core may have of all addresses, however few queues there are.
const LEAST_UNCONNECTED: usize = 4;
/// Bytes of a page of an I/O queue, where ranges and Connect's data go.
const IO_PAGE_BYTES: usize = 4096;

impl Server {
    /// Takes requests, and goes on with those that are being accepted. A queue takes its time to be
    /// made, for which all others wait: so a turn takes one request of each port, and the next turn
    /// comes no sooner behind it than behind any other.
    pub(super) fn accept(&mut self, now: Duration) -> Result<(), ServerError> {
        let mut has_made = false;
        for at in 0..self.listeners.len() {
            let service = self.listeners[at].port();
            if let Some(request) = self.listeners[at].take() {
                self.dispatch((request, service), now)?;
                has_made = true;
            }
        }
        if let Some(asked) = self.requests.as_mut().and_then(|it| it.pop().ok()) {
            match self.work.is_stopping {
                // Its host is told by the end of the request.
                true => self.not_come(asked.0.peer().ip()),
                false => {
                    self.request(asked, now)?;
                    has_made = true;
                }
            }
        }
        if has_made {
            self.host_came = self.context.device().now() - self.shared.epoch;
            self.next_turn = self.host_came + Self::TURN;
        }
        let mut coming = std::mem::take(&mut self.coming);
        coming.retain_mut(|it| self.is_still_coming(it, now));
        self.coming.append(&mut coming);
        Ok(())
    }

    /// Goes on with a queue that is being accepted; whether it still is.
    fn is_still_coming(&mut self, it: &mut Coming, now: Duration) -> bool {
        let Some(done) = it.connecting.poll() else {
            if now.saturating_sub(it.since) <= CONNECT_PATIENCE {
                return true;
            }
            // Its host has asked, and says no more.
            self.sessions.remove(it.place);
            self.gone(it.peer);
            return false;
        };
        let connected = match done {
            Ok(connected) => connected,
            Err(refused) => {
                tracing::debug!(cause = %refused.cause, "no connection");
                self.sessions.remove(it.place);
                self.gone(it.peer);
                return false;
            }
        };
        let local = SocketAddr::new(connected.connection.local(), it.service);
        let session = Session::new(Parts {
            queue: Queue::new(name(self.poller, it.place), &it.request, local, it.peer),
            connection: connected.connection,
            pages: it.pages.clone(),
            page_bytes: it.page_bytes,
            max_reads: connected.initiator_depth,
            since: now,
            remote_invalidate: self.config.remote_invalidate,
            host: self.host_number(it.peer),
        });
        self.stats.accepted += 1;
        self.sessions.insert(connected.qp, session);
        false
    }

    /// The number that the queues of an address have on this core, or the lowest that none has.
    fn host_number(&mut self, peer: IpAddr) -> u16 {
        let mut taken = vec![false; self.config.queues as usize + 1];
        for (_, Session { link, .. }) in self.sessions.iter_mut() {
            if link.connection.peer().ip() == peer {
                return link.host;
            }
            if let Some(it) = taken.get_mut(usize::from(link.host)) {
                *it = true;
            }
        }
        let free = taken.iter().position(|it| !it).unwrap_or(0);
        u16::try_from(free).unwrap_or(0)
    }

    /// Gives a request to the core with the fewest queues, this one among them.
    fn dispatch(&mut self, asked: Asked, now: Duration) -> Result<(), ServerError> {
        let all = std::iter::once(&self.load).chain(self.others.iter().map(|it| &it.load));
        let loads = all.map(|load| load.load(Ordering::Relaxed)).enumerate();
        let total: u32 = loads.clone().map(|(_, load)| load).sum();
        let least = loads.min_by_key(|(_, load)| *load).map_or(0, |(poller, _)| poller);
        if total >= self.config.queues {
            return self.reject(asked.0, Reject::Resources);
        }
        let peer = asked.0.peer().ip();
        if !self.shared.lock().enter(peer) {
            return self.reject(asked.0, Reject::Resources);
        }
        let Some(other) = least.checked_sub(1).and_then(|at| self.others.get_mut(at)) else {
            self.load.fetch_add(1, Ordering::Relaxed);
            return self.request(asked, now);
        };
        other.load.fetch_add(1, Ordering::Relaxed);
        match other.requests.push(asked) {
            Ok(()) => Ok(()),
            Err(PushError::Full((request, _))) => {
                other.load.fetch_sub(1, Ordering::Relaxed);
                self.shared.lock().exit(peer);
                self.reject(request, Reject::Resources)
            }
        }
    }

    fn reject(&mut self, request: ConnRequest, why: Reject) -> Result<(), ServerError> {
        tracing::info!(peer = %request.peer(), ?why, "queue refused");
        self.stats.rejected += 1;
        Ok(request.reject(&why.encode())?)
    }

    /// Accepts a request that counts as a queue of this core, or refuses it.
    fn request(&mut self, (request, service): Asked, now: Duration) -> Result<(), ServerError> {
        // Who comes may have left just now: that is seen before its Connect is.
        self.next_tick = now;
        let peer = request.peer().ip();
        let entries = self.work.settings.entries;
        let reads = request.responder_resources();
        let parsed = Request::parse(&request.private_data(), entries, reads);
        let made = parsed.and_then(|parsed| {
            if self.is_flooded_by(peer) {
                return Err(Reject::Resources);
            }
            self.make_way();
            self.make(&parsed).map(|made| (parsed, made)).map_err(|error| {
                tracing::warn!(%error, "no room for a queue");
                Reject::Resources
            })
        });
        let (parsed, (qp, place, pages, page_bytes)) = match made {
            Ok(made) => made,
            Err(why) => {
                self.not_come(peer);
                return self.reject(request, why);
            }
        };
        let accept = Accept { crqsize: parsed.entries().into(), ..Accept::default() };
        let params = ConnParams {
            responder_resources: 0,
            initiator_depth: MAX_READS.min(reads),
            private_data: accept.as_bytes(),
            ..ConnParams::default()
        };
        match request.accept(qp, &params) {
            Ok(connecting) => {
                self.stats.queues += 1;
                self.coming.push(Coming {
                    place,
                    connecting,
                    request: parsed,
                    pages,
                    page_bytes,
                    since: now,
                    peer,
                    service,
                });
            }
            Err(refused) => {
                tracing::debug!(cause = %refused.cause, "no connection");
                self.sessions.remove(place);
                self.not_come(peer);
            }
        }
        Ok(())
    }

    /// A queue of an address that this core was given has not come about.
    pub(super) fn not_come(&self, peer: IpAddr) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.shared.lock().exit(peer);
    }

    /// Queues without Connect, by their places.
    fn unconnected(&mut self) -> Vec<Newcomer<u32>> {
        let is_one = |link: &Link| {
            link.queue.role == Role::Unconnected && !link.queue.has_left() && link.ending.is_none()
        };
        let made = self.sessions.iter_mut().filter(|(_, session)| is_one(&session.link));
        let made = made.map(|(qp, Session { link, .. })| {
            let (who, peer) = (qp.user_index(), link.connection.peer().ip());
            Newcomer { who, peer, since: link.since, is_unheard: false }
        });
        let coming = self.coming.iter().map(|it| {
            let Coming { place, peer, since, .. } = *it;
            Newcomer { who: place, peer, since, is_unheard: true }
        });
        made.chain(coming).collect()
    }

    /// Whether an address has as many queues without Connect as it may.
    fn is_flooded_by(&mut self, peer: IpAddr) -> bool {
        self.unconnected().iter().filter(|it| it.peer == peer).count() >= MAX_UNCONNECTED
    }

    /// Ends a queue without Connect if there are as many as may be, a quarter of all queues.
    fn make_way(&mut self) {
        let share = self.config.queues as usize / 4 / self.shared.cores().max(1);
        let last = who_makes_way(&self.unconnected(), share.max(LEAST_UNCONNECTED));
        let Some(place) = last else { return };
        let removed = self.sessions.remove(place);
        let Some((qp, mut session)) = removed else {
            for it in self.coming.extract_if(.., |it| it.place == place).collect::<Vec<_>>() {
                self.gone(it.peer);
            }
            return;
        };
        session.link.end("no Connect came, and others want a queue");
        if let Err(error) = session.link.connection.disconnect(&[]) {
            tracing::debug!(%error, "the host was not told");
        }
        let shared = Arc::clone(&self.shared);
        self.forget(session, &mut shared.lock());
        drop(qp);
    }

    /// Makes a queue pair with its receives.
    fn make(
        &mut self,
        request: &Request,
    ) -> Result<(Qp, u32, ferrocx::verbs::Mr, usize), ferrocx::verbs::VerbsError> {
        let place = self.sessions.reserve();
        self.make_at(place, request).inspect_err(|_| drop(self.sessions.remove(place)))
    }

    fn make_at(
        &mut self,
        user_index: u32,
        request: &Request,
    ) -> Result<(Qp, u32, ferrocx::verbs::Mr, usize), ferrocx::verbs::VerbsError> {
        let entries = request.entries();
        let count = usize::from(entries);
        let data_bytes = self.work.settings.in_capsule_bytes as usize;
        let page_bytes = if request.qid == 0 { ADMIN_PAGE_BYTES } else { IO_PAGE_BYTES };
        // A command ends where a page begins, so that the data behind it have pages of their own.
        let stride = session::STRIDE_PAGES + data_bytes;
        let page = self.config.page;
        let memory = backend::memory(&self.context, count * stride, page)?;
        let key = self.pd.get_dma_mr()?;
        let receives = key.over(&memory)?;
        let pages = key.over(&backend::memory(&self.context, count * page_bytes, page)?)?;
        let config = QpConfig {
            max_send_wr: session::send_requests(entries),
            max_recv_wr: entries.into(),
            max_inline_bytes: CQE_BYTES as u32,
            user_index,
            ..QpConfig::default()
        };
        let mut qp: Qp = self.pd.create_qp(&self.cq, &config)?;
        qp.init(&InitAttr::default())?;
        for at in 0..count {
            let start = at * stride + session::STRIDE_PAGES - SQE_BYTES;
            let recv = receives.buf(start..start + SQE_BYTES + data_bytes)?;
            let posted = qp.post_recv(wr::RECV | at as u64, recv);
            debug_assert!(posted.is_ok(), "the queue has room for its entries");
        }
        Ok((qp, user_index, pages, page_bytes))
    }
}
