//! What ferrocx costs, one question per bench.
