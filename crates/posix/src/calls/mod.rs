//! System calls. Each does what it can without waiting.

mod batches;
mod control;
mod epoll;
mod error_queue;
mod names;
mod opening;
mod options;
mod pipes;
mod poll;
mod transfer;
