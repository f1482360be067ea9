//! Delivery rate: what an ACK says about bandwidth (Linux's `tcp_rate.c`).
