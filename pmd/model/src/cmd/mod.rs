//! The command interface: queue entries, mailbox chains, delivery, completion.
//!
//! A command is fetched, executed and completed when its doorbell bit is seen, so slots complete in
//! the order in which they were rung, and MANAGE_PAGES in one slot never waits for another, unless
//! the fault plan holds a command back.
//!
//! - `queue` runs the entries that were rung, `deliver` reads and writes what they name.
//! - `dispatch` finds the handler of an opcode; `handler` is what all handlers share.
//! - Families of commands: `device` and `registers`; `basic` (UAR pages, domains, keys); `queues`
//!   (EQ, CQ), `work_queues`, `transport`; `flow`, `fte`, `flow_counter`; `vport`, `l2_table`;
//!   `roce`; `user` and `umem` (user contexts, which DevX is made of); `memic` (memory of the
//!   device).
//!
//! Source: reference 2.1 to 2.4.

mod basic;
mod deliver;
mod device;
mod dispatch;
mod flow;
mod flow_counter;
mod fte;
mod handler;
mod l2_table;
mod memic;
pub(crate) mod queue;
mod queues;
mod registers;
mod ring;
mod roce;
mod transport;
mod umem;
mod user;
mod vport;
mod work_queues;
