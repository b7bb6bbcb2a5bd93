//! Packet forwarding and generation over ferrocx-pmd.
