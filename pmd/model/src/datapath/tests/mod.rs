//! The data path against literal WQEs and CQEs.
#![allow(clippy::cast_possible_truncation, reason = "test data")]

mod plain;
