//! [`Sidr`]: who answers for a datagram service, sans I/O: questions, and answers to those of
//! peers.
//!
//! Source: IBTA vol. 1, 12.11; the private data begin as those of connections do.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use ferrocx_prm::Layout;
use ferrocx_prm::mad::{CmSidrRep, CmSidrReq, CmaHeader, DEFAULT_PKEY};

use super::config::CmConfig;
use super::conn::{Ends, filled, header, read_header, time_of};
use super::engine::Out;
use super::message::{Mad, Message};
use super::turn::Turn;

/// Service ids of UDP ports: `RDMA_PS_UDP`. Source: Linux `cma.c`.
const UDP_SERVICES: u64 = 0x0111_0000;
/// Questions that wait for a service, those of one peer among them, and answers that are remembered
/// in case they get lost.
const MAX_WAITING: usize = 128;
const MAX_WAITING_OF_PEER: usize = 32;
const MAX_REMEMBERED: usize = 1024;
/// `status` of an answer: no such service.
const NO_SERVICE: u32 = 1;
/// `status` of an answer: the service does not want to.
pub(super) const REFUSED: u32 = 2;

/// What was answered to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatagramAnswer {
    /// Here it is.
    Found {
        /// The peer's queue pair.
        qpn: u32,
        /// The key of its datagrams.
        qkey: u32,
        /// What its program says: 136 bytes, filled up with zeros.
        private_data: Vec<u8>,
    },
    /// There is none. 1: no such service, 2: it refused, 3: no queue pair.
    Refused(u32),
    /// Nobody answered.
    NoAnswer,
}

/// A question of ours.
#[derive(Debug)]
struct Question {
    ends: Ends,
    mad: Mad,
    left: u8,
    due: Duration,
    answer: Option<DatagramAnswer>,
}

/// A peer, and its number of a question.
type Key = (Ends, u32);

/// A question of a peer's.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) ends: Ends,
    transaction_id: u64,
    pub(super) request: Box<CmSidrReq>,
    /// The way to its peer is known. One that is not reached is not taken.
    is_reached: bool,
}

impl Asked {
    fn key(&self) -> Key {
        (self.ends, self.request.request_id())
    }

    /// Who asks.
    pub(super) fn peer(&self) -> SocketAddr {
        let header = read_header(&self.request.private_data());
        SocketAddr::new(self.ends.remote, header.map_or(0, |header| header.port() as u16))
    }

    /// What its program says: 180 bytes, filled up with zeros.
    pub(super) fn private_data(&self) -> Vec<u8> {
        self.request.private_data()[CmaHeader::SIZE_BYTES..].to_vec()
    }
}

/// Questions and answers of a port.
#[derive(Debug)]
pub(super) struct Sidr {
    next_id: u32,
    interval: Duration,
    retries: u8,
    questions: HashMap<u32, Question>,
    listeners: HashMap<u64, VecDeque<Asked>>,
    /// Questions that were taken and not answered yet.
    open: HashSet<Key>,
    answered: VecDeque<(Key, Out)>,
    /// Questions that were handed out to have their peers reached.
    sought: Turn,
    pub(super) out: VecDeque<Out>,
}

/// The service of a UDP port.
pub(super) fn service_of(port: u16) -> u64 {
    UDP_SERVICES | u64::from(port)
}

impl Sidr {
    pub(super) fn new(config: &CmConfig, first_id: u32) -> Self {
        Self {
            next_id: first_id,
            interval: time_of(config.response_timeout.into()),
            retries: config.max_retries,
            questions: HashMap::new(),
            listeners: HashMap::new(),
            open: HashSet::new(),
            answered: VecDeque::new(),
            sought: Turn::default(),
            out: VecDeque::new(),
        }
    }

    /// Takes questions for a port from now on; `false` if it does already.
    pub(super) fn listen(&mut self, port: u16) -> bool {
        let is_new = !self.listeners.contains_key(&service_of(port));
        self.listeners.entry(service_of(port)).or_default();
        is_new
    }

    /// Takes no more questions; those that nobody has taken get no answer but the next one.
    pub(super) fn unlisten(&mut self, port: u16) {
        self.listeners.remove(&service_of(port));
    }

    /// The oldest question for a port that nobody has taken, of a peer that is reached.
    pub(super) fn take(&mut self, port: u16) -> Option<Asked> {
        let queue = self.listeners.get_mut(&service_of(port))?;
        let asked = queue.remove(queue.iter().position(|asked| asked.is_reached)?)?;
        self.open.insert(asked.key());
        Some(asked)
    }

    /// Asks a peer, from a port of ours; the number of the question.
    pub(super) fn ask(
        &mut self,
        ends: Ends,
        (source_port, port): (u16, u16),
        private_data: &[u8],
        now: Duration,
    ) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let said = [&header(ends, source_port).0, private_data].concat();
        let request = CmSidrReq::zeroed()
            .with_request_id(id)
            .with_partition_key(DEFAULT_PKEY)
            .with_service_id(service_of(port))
            .with_private_data(filled(&said));
        let mad = Mad { transaction_id: u64::from(id), message: Message::SidrReq(request) };
        let (left, due) = (self.retries, now.saturating_add(self.interval));
        self.questions.insert(id, Question { ends, mad, left, due, answer: None });
        self.out.push_back(Out { ends, mad, id: None, is_stranger: false });
        id
    }

    /// What was answered to a question of ours, if anything was.
    pub(super) fn answer_of(&self, id: u32) -> Option<&DatagramAnswer> {
        self.questions.get(&id)?.answer.as_ref()
    }

    /// Nobody wants to know the answer any more.
    pub(super) fn forget(&mut self, id: u32) {
        self.questions.remove(&id);
    }

    /// Peers of questions that are not reached, in turn, to be tried again.
    pub(super) fn unreached(&mut self, most: usize) -> Vec<Ends> {
        let asked = self.listeners.values().flatten().filter(|asked| !asked.is_reached);
        let all = asked.map(|asked| asked.ends).collect();
        self.sought.next_of(all, most)
    }

    /// The way to a peer is known: its questions can be taken.
    pub(super) fn reached(&mut self, ends: Ends) {
        let asked = self.listeners.values_mut().flatten().filter(|asked| asked.ends == ends);
        asked.for_each(|asked| asked.is_reached = true);
    }

    /// A peer cannot be reached.
    pub(super) fn unreachable(&mut self, ends: Ends) {
        for queue in self.listeners.values_mut() {
            queue.retain(|asked| asked.is_reached || asked.ends != ends);
        }
        for question in self.questions.values_mut().filter(|question| question.ends == ends) {
            question.answer.get_or_insert(DatagramAnswer::NoAnswer);
        }
    }

    /// Answers a question: status 0 with the queue pair and its key.
    pub(super) fn reply(
        &mut self,
        asked: &Asked,
        (status, qpn, qkey): (u32, u32, u32),
        said: &[u8],
    ) {
        let out = self.say(asked, (status, qpn, qkey), said);
        self.open.remove(&asked.key());
        if self.answered.len() == MAX_REMEMBERED {
            self.answered.pop_front();
        }
        self.answered.push_back((asked.key(), out));
    }

    /// Sends an answer.
    fn say(&mut self, asked: &Asked, (status, qpn, qkey): (u32, u32, u32), said: &[u8]) -> Out {
        let reply = CmSidrRep::zeroed()
            .with_request_id(asked.request.request_id())
            .with_status(status)
            .with_qpn(qpn)
            .with_service_id(asked.request.service_id())
            .with_q_key(qkey)
            .with_private_data(filled(said));
        let mad = Mad { transaction_id: asked.transaction_id, message: Message::SidrRep(reply) };
        let out = Out { ends: asked.ends, mad, id: None, is_stranger: true };
        self.out.push_back(out);
        out
    }

    /// Takes a message of a peer that is reached or not; `false` if it is another one's.
    pub(super) fn receive(&mut self, ends: Ends, mad: &Mad, is_reached: bool) -> bool {
        match &mad.message {
            Message::SidrReq(request) => {
                let (transaction_id, request) = (mad.transaction_id, Box::new(*request));
                self.on_request(Asked { ends, transaction_id, request, is_reached });
            }
            Message::SidrRep(reply) => self.on_reply(ends, reply),
            _ => return false,
        }
        true
    }

    fn on_request(&mut self, asked: Asked) {
        let (ends, request) = (asked.ends, &asked.request);
        let key = asked.key();
        if let Some((_, out)) = self.answered.iter().find(|(known, _)| *known == key) {
            return self.out.push_back(*out);
        }
        let has_header = read_header(&request.private_data()).is_some();
        let Some(queue) = self.listeners.get_mut(&request.service_id()).filter(|_| has_header)
        else {
            // Not remembered: it is the same the next time, and strangers ask for anything.
            self.say(&asked, (NO_SERVICE, 0, 0), &[]);
            return;
        };
        let is_known = self.open.contains(&key) || queue.iter().any(|asked| asked.key() == key);
        // The program holds those that are open: one too many asks again.
        if is_known || self.open.len() >= MAX_REMEMBERED {
            return;
        }
        // The oldest question goes, of the peer itself if it has many, so that a crowd keeps nobody
        // away: what nobody took asks again.
        let is_own = |asked: &Asked| asked.ends.remote == ends.remote;
        if queue.iter().filter(|asked| is_own(asked)).count() >= MAX_WAITING_OF_PEER {
            if let Some(oldest) = queue.iter().position(is_own) {
                queue.remove(oldest);
            }
        } else if queue.len() >= MAX_WAITING {
            // One whose peer is not reached goes before those whose peers are.
            match queue.iter().position(|asked| !asked.is_reached) {
                Some(at) => drop(queue.remove(at)),
                None if asked.is_reached => drop(queue.pop_front()),
                None => return,
            }
        }
        queue.push_back(asked);
    }

    fn on_reply(&mut self, ends: Ends, reply: &CmSidrRep) {
        let Some(question) = self.questions.get_mut(&reply.request_id()) else { return };
        if question.ends != ends {
            return;
        }
        question.answer.get_or_insert(match reply.status() {
            0 => DatagramAnswer::Found {
                qpn: reply.qpn(),
                qkey: reply.q_key(),
                private_data: reply.private_data().to_vec(),
            },
            status => DatagramAnswer::Refused(status),
        });
    }

    /// Whether a message that could not be sent yet is still of use: an answer is, and a question
    /// that somebody waits for.
    pub(super) fn wants(&self, message: &Message) -> bool {
        let Message::SidrReq(request) = message else { return true };
        let question = self.questions.get(&request.request_id());
        question.is_some_and(|question| question.answer.is_none())
    }

    /// Asks again what was not answered in time.
    pub(super) fn poll(&mut self, now: Duration) {
        for question in self.questions.values_mut() {
            if question.answer.is_some() || now < question.due {
                continue;
            }
            if question.left == 0 {
                question.answer = Some(DatagramAnswer::NoAnswer);
                continue;
            }
            question.left -= 1;
            question.due = now.saturating_add(self.interval);
            let Question { ends, mad, .. } = *question;
            self.out.push_back(Out { ends, mad, id: None, is_stranger: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn ends(local: u8, remote: u8) -> Ends {
        Ends { local: [10, 0, 0, local].into(), remote: [10, 0, 0, remote].into() }
    }

    fn two() -> (Sidr, Sidr) {
        (Sidr::new(&CmConfig::default(), 5), Sidr::new(&CmConfig::default(), 900))
    }

    /// Hands over what `from` sends.
    fn carry(from: &mut Sidr, to: &mut Sidr, as_seen_by_to: Ends) -> usize {
        let sent: Vec<_> = from.out.drain(..).collect();
        for out in &sent {
            assert!(to.receive(as_seen_by_to, &Mad::parse(&out.mad.to_bytes()).unwrap(), true));
        }
        sent.len()
    }

    #[test]
    fn a_question_is_answered_once_and_its_repetition_again() {
        let (mut a, mut b) = two();
        let (of_a, of_b) = (ends(1, 2), ends(2, 1));
        assert!(b.listen(7174) && !b.listen(7174));
        let id = a.ask(of_a, (4000, 7174), b"who", Duration::ZERO);
        let first = a.out[0];
        assert!(a.wants(&first.mad.message) && !b.wants(&first.mad.message));
        assert_eq!(carry(&mut a, &mut b, of_b), 1);
        let asked = b.take(7174).unwrap();
        assert_eq!(asked.peer(), "10.0.0.1:4000".parse().unwrap());
        assert_eq!((&asked.private_data()[..4], asked.private_data().len()), (&b"who\0"[..], 180));
        // While it is open, it is not taken again.
        assert!(b.receive(of_b, &first.mad, true) && b.take(7174).is_none() && b.out.is_empty());
        b.reply(&asked, (0, 0x1234, 0x0123_4567), b"me");
        assert_eq!(carry(&mut b, &mut a, of_a), 1);
        let Some(DatagramAnswer::Found { qpn: 0x1234, qkey: 0x0123_4567, private_data }) =
            a.answer_of(id)
        else {
            panic!("{:?}", a.answer_of(id));
        };
        assert_eq!((&private_data[..3], private_data.len()), (&b"me\0"[..], 136));
        assert!(b.receive(of_b, &first.mad, true));
        assert_eq!((b.out.len(), b.take(7174).is_none()), (1, true), "the answer was lost");
        assert!(!a.wants(&first.mad.message), "it is answered");
        // A third party's answer is none.
        a.forget(id);
        assert!(a.answer_of(id).is_none());
    }

    #[test]
    fn nobody_there_and_nobody_listening_are_told_apart() {
        let (mut a, mut b) = two();
        let id = a.ask(ends(1, 2), (1, 9), &[], Duration::ZERO);
        assert_eq!(carry(&mut a, &mut b, ends(2, 1)), 1);
        let refusal = b.out[0].mad;
        assert!(
            a.receive(ends(1, 3), &refusal, true) && a.answer_of(id).is_none(),
            "of another peer"
        );
        carry(&mut b, &mut a, ends(1, 2));
        assert_eq!(a.answer_of(id), Some(&DatagramAnswer::Refused(NO_SERVICE)));
        let id = a.ask(ends(1, 2), (1, 9), &[], Duration::ZERO);
        let mut asked = 0;
        for second in 0..100 {
            a.poll(Duration::from_secs(second));
            asked += a.out.drain(..).count();
        }
        assert_eq!(asked, 1 + usize::from(CmConfig::default().max_retries));
        assert_eq!(a.answer_of(id), Some(&DatagramAnswer::NoAnswer));
    }

    /// A question of a peer's, as it comes in.
    fn ask_from(peer: u8, to: &mut Sidr, port: u16) -> Mad {
        let mut from = Sidr::new(&CmConfig::default(), to.next_id.wrapping_add(peer.into()));
        from.ask(ends(peer, 1), (4000, port), b"who", Duration::ZERO);
        let mad = Mad::parse(&from.out[0].mad.to_bytes()).unwrap();
        to.next_id = to.next_id.wrapping_add(1000);
        assert!(to.receive(ends(1, peer), &mad, true));
        mad
    }

    #[test]
    fn peers_that_are_not_reached_push_out_each_other_alone() {
        let (_, mut b) = two();
        b.listen(7174);
        let ask = |b: &mut Sidr, peer: u16, is_reached| {
            let mut from = Sidr::new(&CmConfig::default(), peer.into());
            let theirs = |peer: u16| IpAddr::from([10, 1, (peer >> 8) as u8, peer as u8]);
            let ends = Ends { local: [10, 0, 0, 1].into(), remote: theirs(peer) };
            from.ask(ends, (4000, 7174), b"who", Duration::ZERO);
            assert!(b.receive(ends, &from.out[0].mad, is_reached));
            ends
        };
        let honest = ask(&mut b, 1, true);
        let strangers: Vec<Ends> = (2..1000).map(|peer| ask(&mut b, peer, false)).collect();
        assert_eq!(b.take(7174).map(|asked| asked.ends), Some(honest));
        assert!(b.take(7174).is_none(), "not reached");
        // All are tried in turn. One is there, another is not.
        let tried: HashSet<Ends> = (0..16).flat_map(|_| b.unreached(16)).collect();
        assert_eq!(tried.len(), MAX_WAITING - 1);
        let [.., there, gone] = strangers[..] else { panic!() };
        b.reached(there);
        b.unreachable(gone);
        assert_eq!(b.take(7174).map(|asked| asked.ends), Some(there));
        // Where all that wait are reached, one that is not has no place.
        for peer in 1000..1200 {
            ask(&mut b, peer, true);
        }
        ask(&mut b, 1, false);
        assert!(b.unreached(16).is_empty());
    }

    #[test]
    fn a_crowd_of_strangers_keeps_nobody_away() {
        const HONEST: u8 = 200;
        let (_, mut b) = two();
        b.listen(7174);
        let answered = ask_from(HONEST, &mut b, 7174);
        let asked = b.take(7174).unwrap();
        b.reply(&asked, (0, 0x1234, 1), b"me");
        // To ports that nobody listens on: that pushes no answer out.
        for peer in (2..150).cycle().take(2 * MAX_REMEMBERED) {
            ask_from(peer, &mut b, 9);
        }
        b.out.clear();
        assert!(b.receive(ends(1, HONEST), &answered, true));
        assert_eq!((b.out.len(), b.take(7174).is_none()), (1, true), "it was answered");
        // Nor does one that asks a lot, or many that do.
        for peer in (2..150).cycle().take(10 * MAX_WAITING) {
            ask_from(peer, &mut b, 7174);
        }
        ask_from(HONEST, &mut b, 7174);
        for _ in 0..10 * MAX_WAITING {
            ask_from(150, &mut b, 7174);
        }
        let waiting: Vec<_> = std::iter::from_fn(|| b.take(7174)).collect();
        let of = |peer: u8| waiting.iter().filter(|asked| asked.ends == ends(1, peer)).count();
        assert_eq!((waiting.len(), of(HONEST), of(150)), (MAX_WAITING, 1, MAX_WAITING_OF_PEER));
    }
}
