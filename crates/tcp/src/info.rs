//! `TCP_INFO`: what `ss -tin` shows, and where the bytes of a flow are.
